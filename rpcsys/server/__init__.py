"""The device server: accepts connections, and runs each session in a process of its own."""

from rpcsys.server.session.registry import register
from rpcsys.server.session.trace_context import traceparent

__all__ = ["register", "traceparent"]
