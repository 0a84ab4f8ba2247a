"""Connections that the proxy makes itself: to its tracker, or to the next proxy."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from rpcsys.link import tune, tune_connected

CONNECT_S = 5.0
"""For one of a host's addresses. Whoever waits for the connection gives up after about twice that."""


async def dial(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket.

    Raises
    ------
    OSError: no such host, or none of its addresses answers.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host!r} is no host") from None
    problem = OSError(f"{host!r} has no address")
    for family, kind, protocol, _, address in found:
        try:
            return await _connect(socket.socket(family, kind, protocol), address)
        except asyncio.TimeoutError:
            problem = TimeoutError(f"no answer in {CONNECT_S:g} s")
        except OSError as error:
            problem = error.with_traceback(None)  # whose frames have it: they would wait for the collector
    try:
        raise problem
    finally:
        del problem


async def _connect(sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setblocking(False)
        tune(sock)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, address), CONNECT_S)
        tune_connected(sock)
    except BaseException:
        sock.close()
        raise
    return sock
