"""HELLO, the first frame in both directions, and the window that it grants a client."""

from __future__ import annotations

from typing import Any

from rpcsys.errors import ProtocolError
from rpcsys.server import capabilities
from rpcsys.server.sandbox import processes
from rpcsys.server.sandbox.messages import Job
from rpcsys.stream import Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame

VERSION = 1
HELLO_S = 10.0  # a client that sends nothing after the handshake is dropped after this many seconds


def fields(job: Job, able: dict[str, Any], calls: int, window_bytes: int, **more: Any) -> dict[str, Any]:
    """The fields of HELLO: the capabilities ``able``, the calls and bytes of the window, and ``more``."""
    window = {"calls": calls, "bytes": window_bytes}
    ours = {"version": VERSION, "key": job.key, "pid": processes.number(), "capabilities": able, "window": window}
    return {**ours, **more}


def board() -> dict[str, Any]:
    """The fields of HELLO that describe the board."""
    return {"machine": capabilities.machine(), "devices": ["cpu:0"]}


def received(stream: Stream) -> Frame:
    """Receive the client's HELLO.

    Raises `ProtocolError` for another frame, or none in time; `Ended` when the client is gone.
    """
    frame = stream.receive_within(HELLO_S)
    if frame is None or frame.kind != frames.HELLO:
        raise ProtocolError("a session begins with HELLO")
    return frame


def memory() -> int:
    """The most bytes of one frame: the machine's memory. Memory is used only as bytes arrive."""
    return min(capabilities.memory() or frames.MAX_BODY, frames.MAX_BODY)


def window_bytes() -> int:
    """Bytes of arguments that a client may have under way: a sixteenth of memory, from 1 to 256 MiB."""
    return max(1 << 20, min(memory() // 16, 256 << 20))
