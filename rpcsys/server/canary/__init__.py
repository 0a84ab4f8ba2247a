"""Canaries: a small, fixed piece of work that tells whether a board is as fast as it was."""
