"""Fills what a replica's history lacks: leases that ended before it came, or while it was away for so long that the
journal between is deleted. The leader is asked page by page, as a client asks for the history.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from rpcsys.daemon.dialling import dial, take_magic
from rpcsys.errors import ProtocolError
from rpcsys.link.backoff import Backoff, jitter
from rpcsys.tracker import tables
from rpcsys.tracker.replicas.engine import ReplicaStatus
from rpcsys.tracker.replicas.role import RoleStage
from rpcsys.tracker.store import HistoryStore
from rpcsys.wire import checks
from rpcsys.wire.control import Answer, History
from rpcsys.wire.tracker import MAGIC_BYTES, TrackerFrameReader, decode_json, encode

log = logging.getLogger(__name__)
PAGE = 1000  # leases that are asked for at once; more than so many do not wait for the disk
ANSWER_S = 10.0  # for a page: the leader looks for 5 s at most
WRITTEN_S = 2.0  # before the leader is asked: it tells what is in its file, which it writes within a second
PAUSE_S = 0.1  # between two looks at what waits for the disk
PAUSES_S = (2.0, 60.0)  # the first and the longest pause after a failure
_RECEIVED = 64 << 10


class LackingHistory:
    """Reads what ``store`` lacks, by its position. ``begin``: runs a coroutine beside all else, and returns it."""

    def __init__(self, store: HistoryStore, begin: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._store = store
        self._begin = begin
        self._backoff = Backoff(*PAUSES_S)
        self._task: asyncio.Task[None] | None = None
        self._since: float | None = None

    def look(self, leader: ReplicaStatus, now: float) -> None:
        """Begin to read from this leader, if there is a lack, and its own history has none."""
        since, busy = self._store.position.lacks, self._task is not None and not self._task.done()
        if since != self._since:
            self._since, self._backoff.until = since, now + WRITTEN_S
        able = leader.whole and leader.role == RoleStage.LEADING.value
        if since is not None and able and not busy and self._backoff.allows(now):
            self._task = self._begin(self._fill(leader.address, since, now))

    def stop(self) -> None:
        """Read no more from this leader: another one, or none, has come. What was read stays."""
        if self._task is not None:
            self._task.cancel()

    async def _fill(self, leader: tuple[str, int], since: float, now: float) -> None:
        try:
            with await dial(*leader) as sock:
                await self._read(sock, since)
        except (OSError, ProtocolError, asyncio.TimeoutError) as error:
            if self._backoff.failed(now, jitter()):
                log.warning("cannot read what this tracker's history lacks from the leader, %s:%d: %s", *leader, error)
        else:
            self._backoff.worked()
            self._store.past_is_whole()
            log.info("history_whole")

    async def _read(self, sock: socket.socket, since: float) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, MAGIC_BYTES)
        await take_magic(sock)
        pages = HistoryPages(sock)
        before: int | None = None
        while True:
            question = History(id=1, since=since or None, limit=PAGE, before=before)
            leases, before = await asyncio.wait_for(pages.ask(question), ANSWER_S)
            self._store.add_past(leases)
            if before is None:
                return
            while self._store.failing or self._store.queued > PAGE:  # noqa: ASYNC110 - the disk tells nobody
                await asyncio.sleep(PAUSE_S)


class HistoryPages:
    """Asks a tracker for its history, over a connection on which it has said the magic."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = TrackerFrameReader(magic=False)

    async def ask(self, question: History) -> tuple[list[dict[str, Any]], int | None]:
        """The leases of a page, as `tables.lease` returns them, and the next question's ``before``; None at the end.

        Raises OSError, `ProtocolError`.
        """
        await asyncio.get_running_loop().sock_sendall(self._sock, encode(question))
        return read_page(question, await self._frame())

    async def _frame(self) -> bytes:
        while (frame := self._reader.next()) is None:
            data = await asyncio.get_running_loop().sock_recv(self._sock, _RECEIVED)
            if not data:
                raise OSError("it hung up")
            self._reader.feed(data)
        return frame


def read_page(question: History, frame: bytes) -> tuple[list[dict[str, Any]], int | None]:
    """What a tracker answers, as `HistoryPages.ask` returns it. Rows that are no leases are left out.

    Raises `ProtocolError`: it is no answer, a refusal, or would never end.
    """
    answer = Answer.from_json(decode_json(frame))
    if answer.id != question.id:
        raise ProtocolError("it does not answer the question for its history")
    if not answer.ok:
        raise ProtocolError(f"it does not tell its history ({answer.message})")
    rows, before = answer.fields.get("leases"), answer.fields.get("before")
    if type(rows) is not list or len(rows) > question.limit:
        raise ProtocolError("what it tells of its history is no page of leases")
    if before is not None:
        before = checks.integer(0, checks.MAX_ID)(before, "before")
        if question.before is not None and before >= question.before:
            raise ProtocolError("its history does not end")
    found = (tables.lease({**row, "cleaned": json.dumps(row.get("cleaned"))}) for row in rows if type(row) is dict)
    return [lease for lease in found if lease is not None], before
