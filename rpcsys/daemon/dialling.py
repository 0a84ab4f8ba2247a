"""Connects to other daemons."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from rpcsys.link.tcp import tune, tune_connected
from rpcsys.wire.tracker import MAGIC_BYTES

CONNECT_S = 5.0  # for each of a host's addresses. Clients and servers give up after about twice that.


async def dial(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket.

    Raises `ConnectionRefusedError`: one of the host's addresses refuses, and none accepts; OSError: no such host, or
    none of its addresses answers.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host!r} is no host") from None
    problem = OSError(f"{host!r} has no address")
    refused = None
    for family, kind, protocol, _, address in found:
        try:
            return await _connected(socket.socket(family, kind, protocol), address)
        except ConnectionRefusedError as error:
            refused = error.with_traceback(None)  # its frames refer to it: a cycle for the garbage collector
        except asyncio.TimeoutError:
            problem = TimeoutError(f"no answer in {CONNECT_S:g} s")
        except OSError as error:
            problem = error.with_traceback(None)
    try:
        raise refused or problem
    finally:
        del problem, refused


async def _connected(sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setblocking(False)
        tune(sock)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, address), CONNECT_S)
        tune_connected(sock)
    except BaseException:
        sock.close()
        raise
    return sock


async def take_magic(sock: socket.socket) -> None:
    """Read a tracker's answer to the magic, and nothing behind it. Raises OSError: there is none."""
    got = b""
    while len(got) < len(MAGIC_BYTES):
        wanted = len(MAGIC_BYTES) - len(got)
        try:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, wanted), CONNECT_S)
        except asyncio.TimeoutError:
            raise OSError(f"no answer in {CONNECT_S:g} s") from None
        got += data
        if not data or not MAGIC_BYTES.startswith(got):
            raise OSError("it is no tracker")
