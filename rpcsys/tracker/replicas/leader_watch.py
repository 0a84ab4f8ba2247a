"""Notices at once that the leader's process has died: its connection breaks, and its port refuses another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rpcsys.daemon.dialling import dial
from rpcsys.wire.tracker import MAGIC_BYTES

AGAIN_S = 0.1  # between two attempts to connect


class LeaderWatch:
    """Holds one connection to the leader. Calls ``on_refused(term)`` each time when its port refuses one."""

    def __init__(self, on_refused: Callable[[int], None]) -> None:
        self._on_refused = on_refused
        self._task: asyncio.Task[None] | None = None

    def follow(self, leader: tuple[str, int] | None, term: int) -> None:
        """Watch another leader; None: nobody."""
        self.close()
        if leader is not None:
            self._task = asyncio.get_running_loop().create_task(self._watch(*leader, term))

    def close(self) -> None:
        """Watch nobody."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self, host: str, port: int, term: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                with await dial(host, port) as sock:
                    await loop.sock_sendall(sock, MAGIC_BYTES)
                    while await loop.sock_recv(sock, 4096):
                        pass
            except ConnectionRefusedError:
                self._on_refused(term)
            except OSError:
                pass  # its host may be gone, which its lease will show
            await asyncio.sleep(AGAIN_S)
