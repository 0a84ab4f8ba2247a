"""The device server: accepts connections, and runs each session in a process of its own."""

from rpcsys.server.session.registry import register

__all__ = ["register"]
