"""Builds stages into modules, each for its target: this machine, a leased device or a server."""
