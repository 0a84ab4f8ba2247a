"""Makes, isolates, limits and cleans up the processes of sessions."""
