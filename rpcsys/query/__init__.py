"""``query_tracker``: the tracker's servers and queue at a glance, for people and for scripts."""
