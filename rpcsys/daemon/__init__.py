"""Shared by tracker and proxy, beyond :mod:`rpcsys.serve`: the loop, accepting, and HTTP for people and probes."""
