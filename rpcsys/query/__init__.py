"""``query_tracker``: prints the tracker's servers, queues, leases and history, for people and for scripts."""

from rpcsys import need_host

need_host(__name__)
