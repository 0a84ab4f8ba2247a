"""Tests of the search for a board's devices."""
