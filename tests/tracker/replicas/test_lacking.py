"""A replica reads from the leader what its history lacks: page by page, from one that lacks nothing, and once each."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.serve import bind
from rpcsys.tracker.replicas import lacking
from rpcsys.tracker.replicas.engine import ReplicaStatus
from rpcsys.tracker.replicas.lacking import WRITTEN_S, LackingHistory, read_page
from rpcsys.tracker.store import HistoryStore
from rpcsys.tracker.tables import Position
from rpcsys.wire.control import History
from rpcsys.wire.tracker import MAGIC_BYTES, TrackerFrameReader, decode_json, encode
from tests.tracker import entries

SOON_S = 30.0
PAGE = History(id=1, limit=10, before=50)
NOW = float(int(time.time()))


def lease(epoch: int, ended: float = NOW) -> dict[str, Any]:
    """A past lease as a tracker tells it."""
    texts = {"key": "rpi4", "server": "board", "user": "ann", "address": "10.0.0.9", "how": "ours", "fault": ""}
    times = {"since": ended - 3, "begun": ended - 2, "ended": ended, "held_s": 3.0, "waited_s": 0.5, "limit_s": 60.0}
    ends = {"outcome": "closed", "reason": "", "cleaned": {"files": 1}}
    return {"lease": f"{epoch}-a", "epoch": epoch, **texts, **times, "priority": 1.0, **ends}


def answer(**fields: Any) -> bytes:
    return encode({"id": 1, "ok": True, **fields})[4:]


def test_a_page_has_leases_and_where_the_next_begins() -> None:
    told = read_page(PAGE, answer(leases=[lease(2), {**lease(1), "epoch": "one"}], before=7))
    assert told == ([lease(2)], 7)
    assert read_page(PAGE, answer(leases=[], before=None)) == ([], None)


@pytest.mark.parametrize(
    "frame",
    [
        answer(leases={}),
        answer(leases=[{}] * 11),
        answer(leases=[], before=-1),
        answer(leases=[], before=50),
        encode({"id": 2, "ok": True, "leases": []})[4:],
        encode({"id": 1, "ok": False, "error": "Busy", "message": "try again"})[4:],
        b"[]",
    ],
)
def test_what_is_no_page_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_page(PAGE, frame)


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
    lambda value: answer(leases=[{**lease(1), "cleaned": value}, value], before=value)
))  # fmt: skip
def test_any_frame_is_a_page_or_refused(frame: bytes) -> None:
    try:
        told, before = read_page(PAGE, frame)
    except ProtocolError:
        return
    assert len(told) <= 2
    assert before is None or before < 50


class Leader:
    """Answers questions for the history, one lease to a page. ``hangs``: not the first so many."""

    def __init__(self, leases: list[dict[str, Any]], hangs: int = 0) -> None:
        self.leases, self.hangs = leases, hangs
        self.asked: list[dict[str, Any]] = []
        self.came = asyncio.Event()
        self._listener = bind("127.0.0.1", 0, 1)
        self.status = ReplicaStatus(self._listener.getsockname()[:2], 0, "1", "leads", 5, 1.0)

    async def __aenter__(self) -> Leader:
        self._server = await asyncio.start_server(self._serve, sock=self._listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = TrackerFrameReader()
        writer.write(MAGIC_BYTES)
        while data := await reader.read(4096):
            frames.feed(data)
            while (frame := frames.next()) is not None:
                question = decode_json(frame)
                self.asked.append(question)
                self.came.set()
                if len(self.asked) > self.hangs:
                    writer.write(encode(self._answer(question)))
        writer.close()

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        at = len(self.leases) if question.get("before") is None else question["before"]
        before = at - 1 if at > 1 else None
        return {"id": question["id"], "ok": True, "leases": self.leases[max(0, at - 1) : at], "before": before}


def told(folder: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "tracker.sqlite")) as file:
        return file.execute("SELECT epoch, limit_s, cleaned FROM leases ORDER BY id").fetchall()


def used(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "tracker.sqlite")) as file:
        return int(file.execute("SELECT total(leases) FROM usage").fetchone()[0])


async def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end, "it does not happen"
        await asyncio.sleep(0.01)


def run(folder: Path, act: Callable[[HistoryStore, LackingHistory], Awaitable[None]]) -> None:
    """With a history that has lease 2, and lacks what ended before."""

    async def main() -> None:
        store = HistoryStore(folder, history_days=90)
        try:
            position = Position(7, NOW, 3, 4, "one", lacks=NOW - 1000)
            store.note(entries.over("2-a", NOW, epoch=2), position=position)
            reads = LackingHistory(store, asyncio.ensure_future)
            reads.look(ReplicaStatus(("", 0), 0, "1", "leads", 5, 1.0), -WRITTEN_S)
            await act(store, reads)
        finally:
            store.close()

    asyncio.run(main())


def test_what_is_lacking_is_read_once_and_stands_in_its_place(tmp_path: Path) -> None:
    async def act(store: HistoryStore, reads: LackingHistory) -> None:
        async with Leader([lease(number, NOW - 10 + number) for number in (0, 1)] + [lease(2, NOW)]) as leader:
            reads.look(leader.status, -0.1)
            assert reads._task is None  # it may not have written yet what it knows
            reads.look(leader.status, 0.0)
            reads.look(leader.status, 0.0)  # it is under way
            await until(lambda: store.position.lacks is None)
            assert store.position == Position(7, NOW, 3, 4, "one")
            assert [question.get("before") for question in leader.asked] == [None, 2, 1]
            assert {question["since"] for question in leader.asked} == {NOW - 1000}
            reads.look(leader.status, 1000.0)
            assert reads._task is not None
            assert reads._task.done()

    run(tmp_path, act)
    assert [row[0] for row in told(tmp_path)] == [0, 1, 2]
    assert told(tmp_path)[0] == (0, 60.0, '{"files": 1}')
    assert used(tmp_path) == 3
    again = HistoryStore(tmp_path, history_days=90)
    assert again.position == Position(7, NOW, 3, 4, "one")
    again.close()


@pytest.mark.parametrize("status", [{"whole": False}, {"role": "follows"}])
def test_one_that_may_lack_leases_itself_is_not_asked(tmp_path: Path, status: dict[str, Any]) -> None:
    async def act(store: HistoryStore, reads: LackingHistory) -> None:
        async with Leader([]) as leader:
            reads.look(replace(leader.status, **status), 0.0)
            assert reads._task is None

    run(tmp_path, act)


def test_another_leader_is_asked_from_the_beginning(tmp_path: Path) -> None:
    leases = [lease(number, NOW - 10 + number) for number in (0, 1)]

    async def act(store: HistoryStore, reads: LackingHistory) -> None:
        async with Leader(leases, hangs=1) as first, Leader(leases) as second:
            reads.look(first.status, 0.0)
            await first.came.wait()
            reads.stop()
            await until(lambda: reads._task is None or reads._task.done())
            assert store.position.lacks == NOW - 1000
            reads.look(second.status, 0.0)
            await until(lambda: store.position.lacks is None)
            assert second.asked[0].get("before") is None

    run(tmp_path, act)
    assert [row[0] for row in told(tmp_path)] == [0, 1, 2]


def test_a_leader_that_does_not_answer_is_asked_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lacking, "ANSWER_S", 1.0)

    async def act(store: HistoryStore, reads: LackingHistory) -> None:
        async with Leader([lease(1)], hangs=1) as leader:
            reads.look(leader.status, 0.0)
            await until(lambda: reads._task is not None and reads._task.done())
            reads.look(leader.status, 0.5)
            assert len(leader.asked) == 1
            reads.look(leader.status, 2.0)
            await until(lambda: store.position.lacks is None)

    run(tmp_path, act)
    assert len([record for record in caplog.records if "history lacks" in record.getMessage()]) == 1


def test_a_disk_that_takes_nothing_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HistoryStore, "failing", True)

    async def act(store: HistoryStore, reads: LackingHistory) -> None:
        async with Leader([lease(0), lease(1)]) as leader:
            reads.look(leader.status, 0.0)
            await until(lambda: leader.asked)
            for _ in range(5):
                await asyncio.sleep(lacking.PAUSE_S)
            assert len(leader.asked) == 1
            monkeypatch.setattr(HistoryStore, "failing", False)
            await until(lambda: store.position.lacks is None)

    run(tmp_path, act)
