"""The device server: takes connections, and gives each session a process of its own."""

from rpcsys.server.session.registry import register

__all__ = ["register"]
