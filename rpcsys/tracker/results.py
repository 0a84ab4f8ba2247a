"""The results of auto-tuners' measurements, kept for all at the tracker's host. A thread of its own has the file."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rpcsys.errors import UsageError
from rpcsys.result_store import IN_MEMORY, MAX_BYTES, ResultStore
from rpcsys.wire import results
from rpcsys.wire.control import Answer

log = logging.getLogger(__name__)
FILE = "results.sqlite"
MAX_IN_MEMORY = 64 << 20  # bytes of results without a state directory
MAX_WAITING = 32  # questions that wait for the thread, of 1 MiB at most each
RETRY_S = 10.0  # between two attempts to use a file that cannot be used
Question = results.FindResults | results.KeepResults
_ADVICE = "candidates are measured again meanwhile; make room, or move the file away"


class SharedResults:
    """The results in ``directory``; None: in this process alone. The file is opened for the first question."""

    def __init__(self, directory: str | Path | None) -> None:
        self._path = IN_MEMORY if directory is None else Path(directory) / FILE
        self._max_bytes = MAX_IN_MEMORY if directory is None else MAX_BYTES
        self._thread = ThreadPoolExecutor(1, "rpcsys-results")
        self._asking: set[int] = set()  # connections whose question is under way
        self._store: ResultStore | None = None
        self._failing = False
        self._retry_at = 0.0

    async def answer(self, question: Question, conn: int, user: str) -> Answer:
        """Answer the question of a connection, one at a time. Called on the event loop."""
        if conn in self._asking:
            return Answer(question.id, False, "Busy", "this connection's question before is not answered yet")
        if len(self._asking) >= MAX_WAITING:
            return Answer(question.id, False, "Busy", "too many other questions about results wait: try again")
        self._asking.add(conn)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._asked, question, user)
        finally:
            self._asking.discard(conn)

    def close(self) -> None:
        """Finish what has begun, and close the file; questions that wait are cancelled."""
        self._thread.shutdown(cancel_futures=True)
        self._let_go()

    # In the thread.

    def _asked(self, question: Question, user: str) -> Answer:
        try:
            fields = self._done(self._opened(), question, user)
        except UsageError as error:
            self._failed(error)
            return Answer(question.id, False, "ResultsUnusable", "the tracker cannot use its results: its log says why")
        if self._failing and isinstance(question, results.KeepResults):  # a full file can still be read
            self._failing = False
            log.info("results are kept again in %s", self._path)
        return Answer(question.id, True, fields=fields)

    def _done(self, store: ResultStore, question: Question, user: str) -> dict[str, Any]:
        if isinstance(question, results.KeepResults):
            store.keep_all(question.results, {"user": user})
            return {}
        found = store.find(question.identities)
        return {"found": {identity: seconds for identity, seconds in found.items() if results.can_be_kept(seconds)}}

    def _opened(self) -> ResultStore:
        if self._store is None:
            if time.monotonic() < self._retry_at:
                raise UsageError("it is tried again later")
            self._store = ResultStore(self._path, max_bytes=self._max_bytes, advice=_ADVICE)
        return self._store

    def _failed(self, error: UsageError) -> None:
        """Log it once, and open the file again after a while: somebody may have moved it away."""
        if time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + RETRY_S
            self._let_go()
        if not self._failing:
            self._failing = True
            log.warning("%s", error)

    def _let_go(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()
