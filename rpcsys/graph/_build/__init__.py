"""Stages built into modules, each for its target: here, on a leased device, or on a server."""
