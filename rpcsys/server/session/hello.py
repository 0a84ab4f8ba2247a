"""HELLO, the first frame in both directions, and the window that it grants a client."""

from __future__ import annotations

import functools
from typing import Any

from rpcsys.errors import ProtocolError
from rpcsys.server import capabilities
from rpcsys.server.devices.describing import Devices
from rpcsys.server.sandbox import processes
from rpcsys.server.sandbox.messages import Job
from rpcsys.stream import Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer, Frame

VERSION = 1
HELLO_S = 10.0  # a client that sends nothing after the handshake is dropped after this many seconds


@functools.lru_cache(maxsize=None)
def capable(pickle: bool, cache: bool, deploy: bool, execs: bool) -> bytes:
    """This device's capabilities with these flags, as JSON: encoding them takes a new process longer than all else."""
    return frames.encode_head(capabilities.capabilities(pickle=pickle, cache=cache, deploy=deploy, execs=execs))[0]


def prepare(*flags: bool) -> None:
    """Find the capabilities for sessions that are forked from this process, after its imports."""
    capable.cache_clear()
    for each in {(False,) * 4, flags}:
        capable(*each)


def frame(job: Job, able: bytes, calls: int, window_bytes: int, **more: Any) -> list[Buffer]:
    """The frame of a HELLO with the capabilities ``able``, else as :func:`fields`."""
    head, _ = frames.encode_head(_fields(job, calls, window_bytes, **more))
    described = devices(job).described.encode()
    able = able[:-1] + b',"devices":' + described + b"}"
    return frames.pack(frames.HELLO, 0, head[:-1] + b',"capabilities":' + able + b"}")


def fields(job: Job, able: dict[str, Any], calls: int, window_bytes: int, **more: Any) -> dict[str, Any]:
    """The fields of HELLO: the capabilities ``able``, the calls and bytes of the window, and ``more``."""
    return {**_fields(job, calls, window_bytes, **more), "capabilities": able}


def _fields(job: Job, calls: int, window_bytes: int, **more: Any) -> dict[str, Any]:
    window = {"calls": calls, "bytes": window_bytes}
    return {"version": VERSION, "key": job.key, "pid": processes.number(), "window": window, **more}


def board(job: Job) -> dict[str, Any]:
    """The fields of HELLO that describe the board."""
    return {"machine": capabilities.machine(), "devices": list(devices(job).names)}


def devices(job: Job) -> Devices:
    """The board's devices, as its supervisor has found them."""
    return Devices(*job.options.get("devices", ()))


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
