"""Connects to other daemons."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from rpcsys.link.tcp import tune, tune_connected

CONNECT_S = 5.0  # for each of a host's addresses. Clients and servers give up after about twice that.


async def dial(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket. Raises OSError: no such host, or none of its addresses answers."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host!r} is no host") from None
    problem = OSError(f"{host!r} has no address")
    for family, kind, protocol, _, address in found:
        try:
            return await _connected(socket.socket(family, kind, protocol), address)
        except asyncio.TimeoutError:
            problem = TimeoutError(f"no answer in {CONNECT_S:g} s")
        except OSError as error:
            problem = error.with_traceback(None)  # its frames refer to it: a cycle for the garbage collector
    try:
        raise problem
    finally:
        del problem


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
