"""Shared by tracker and proxy, beyond :mod:`rpcsys.serve`: the loop, accepting, and HTTP for people and probes."""

from rpcsys import need_host

need_host(__name__)
