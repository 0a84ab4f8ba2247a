"""What runs in the process of one session."""
