"""The processes of sessions: how they are made, kept apart, limited and cleaned up after."""
