"""What is served, as trackers and servers list it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rpcsys.errors import ServerUnreachable, TrackerLost, UnknownKey
from rpcsys.gateway import discovery
from rpcsys.gateway.actions import ReplicaPlace
from rpcsys.gateway.discovery import Discovery, ServerSource, TrackerSource
from rpcsys.gateway.state import ServedRow
from tests.gateway.test_upstream import until
from tests.gateway.transcripts import VERSION, place

ROWS = [ServedRow("m", VERSION, place(number)) for number in range(4)]


class Source:
    """Lists what it is told to, or raises it; ``asked``: how often."""

    def __init__(self, said: Any) -> None:
        self.name = "a source"
        self.said = said
        self.asked = 0
        self.open = threading.Event()
        self.open.set()

    def list(self) -> list[ServedRow]:
        self.asked += 1
        self.open.wait(30)
        if isinstance(self.said, Exception):
            raise self.said
        rows: list[ServedRow] = self.said
        return rows


def run(sources: list[Source], test: Callable[[Discovery, list[list[ServedRow]]], Awaitable[None]]) -> None:
    async def main() -> None:
        reports: list[list[ServedRow]] = []
        found = Discovery(sources, reports.append)
        await test(found, reports)
        found.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_all_sources_list_is_served() -> None:
    async def test(found: Discovery, reports: list[list[ServedRow]]) -> None:
        await until(lambda: bool(reports) and len(reports[-1]) == 3)
        assert set(reports[-1]) == set(ROWS[:3])

    run([Source(ROWS[:1]), Source(ROWS[1:3])], test)


def test_a_source_that_is_gone_serves_what_it_listed_last(caplog: pytest.LogCaptureFixture) -> None:
    one, other = Source(ROWS[:1]), Source(ROWS[1:2])

    async def test(found: Discovery, reports: list[list[ServedRow]]) -> None:
        await until(lambda: bool(reports) and len(reports[-1]) == 2)
        one.said = TrackerLost("the tracker is gone")
        other.said = ROWS[1:3]
        asked = one.asked
        found.hurry()
        await until(lambda: len(reports[-1]) == 3 and one.asked >= asked + 2)
        assert set(reports[-1]) == set(ROWS[:3])
        one.said = []
        found.hurry()
        await until(lambda: set(reports[-1]) == set(ROWS[1:3]))

    run([one, other], test)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["a source lists no modules, what is known goes on: the tracker is gone"]


def test_a_source_that_hangs_holds_no_other_up() -> None:
    hung, other = Source([]), Source(ROWS[:1])
    hung.open.clear()

    async def test(found: Discovery, reports: list[list[ServedRow]]) -> None:
        await until(lambda: len(reports) >= 2)
        assert reports[-1] == ROWS[:1]
        hung.open.set()

    run([hung, other], test)


def test_a_hurry_asks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "EVERY_S", 1000.0)
    source = Source([])

    async def test(found: Discovery, reports: list[list[ServedRow]]) -> None:
        for count in range(2, 5):
            await until(lambda: len(reports) == source.asked)
            source.said = ROWS[:count]
            found.hurry()
            await until(lambda count=count: bool(reports) and len(reports[-1]) == count)  # type: ignore[misc]

    run([source], test)


def test_nothing_is_reported_after_the_end() -> None:
    source = Source(ROWS)
    source.open.clear()

    async def test(found: Discovery, reports: list[list[ServedRow]]) -> None:
        await until(lambda: source.asked == 1)
        found.close()
        source.open.set()
        await asyncio.sleep(0.05)
        assert reports == []

    run([source], test)


def test_a_tracker_lists_the_modules_of_all_its_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"name": "m", "version": VERSION, "host": "h", "port": 9, "key": "k", "server": "s"}
    asked = []

    class Tracker:
        said: Any = None

        def resolve(self, name: str) -> Any:
            asked.append(name)
            if self.said is None:
                raise UnknownKey("nothing is deployed")
            return self.said

    tracker = Tracker()
    monkeypatch.setattr(discovery, "connect_tracker", lambda address: tracker)
    source = TrackerSource(("lab", 9190))
    assert source.name == "the tracker at lab:9190"
    assert source.list() == []
    tracker.said = [row]
    assert source.list() == [ServedRow("m", VERSION, ReplicaPlace("h", 9, "k"))]
    assert asked == ["", ""]


def test_a_server_lists_what_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class Deployment:
        closed = False
        gone = False

        def __init__(self, address: tuple[str, int], key: str, timeout: float) -> None:
            opened.append((address, key))

        def list(self) -> Any:
            if self.gone:
                raise ServerUnreachable("gone")
            row = {"name": "m", "version": VERSION, "state": "serving"}
            return [row, {**row, "name": "n", "state": "starting"}]

        def close(self) -> None:
            opened.append("closed")

    monkeypatch.setattr(discovery, "Deployment", Deployment)
    where = ReplicaPlace("edge", 9090, "standing")
    source = ServerSource(where)
    for _ in range(2):
        assert source.list() == [ServedRow("m", VERSION, where)]
    monkeypatch.setattr(Deployment, "gone", True)
    with pytest.raises(ServerUnreachable):
        source.list()
    monkeypatch.setattr(Deployment, "gone", False)
    assert source.list() == [ServedRow("m", VERSION, where)]
    assert opened == [(("edge", 9090), "standing"), "closed", (("edge", 9090), "standing")]
