"""The proxy's connection to a scripted tracker."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcsys.link.address import Addresses
from rpcsys.proxy import tracker_link
from rpcsys.proxy.tracker_link import ProxyTrackerLink
from rpcsys.wire import tracker as wire
from tests.link.fake_replicas import replicas

MAGIC = struct.pack("<i", 0x2F271)


class ScriptedTracker:
    """A tracker that the test plays. ``received``: the messages to it; ``pending``: its answer to GetPending."""

    def __init__(self, hello: Any) -> None:
        self.hello = hello
        self.pending: Any = []
        self.put: Any = 0
        self.received: list[Any] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.silent = False

    async def start(self, port: int = 0) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.address = self.server.sockets[0].getsockname()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            assert await reader.readexactly(4) == MAGIC
            writer.write(MAGIC)
            while True:
                size = struct.unpack("<i", await reader.readexactly(4))[0]
                received = json.loads(await reader.readexactly(size))
                self.received.append(received)
                answers = {1: self.hello, 3: self.put, 5: 0, 7: self.pending}
                if not self.silent:
                    data = json.dumps(answers[received[0]]).encode()
                    writer.write(struct.pack("<i", len(data)) + data)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.close()
        self.writers.clear()

    def close(self) -> None:
        self.hang_up()
        self.server.close()


class RecordedLink:
    """A link, and its calls in order."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.events: list[Any] = []
        self.link = ProxyTrackerLink(
            address, None, lambda: self.events.append("up"), lambda: self.events.append("down"), self.events.append
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_link, "POLL_S", 0.05)
    monkeypatch.setattr(tracker_link, "FIRST_S", 0.02)
    monkeypatch.setattr(tracker_link, "REPLY_TIMEOUT_S", 0.5)


@asynccontextmanager
async def linked(hello: Any = 0) -> AsyncIterator[tuple[ScriptedTracker, RecordedLink]]:
    tracker = ScriptedTracker(hello)
    await tracker.start()
    recorded = RecordedLink(tracker.address)
    try:
        await until(lambda: recorded.events == ["up"])
        yield tracker, recorded
    finally:
        recorded.link.close()
        tracker.close()


async def until(condition) -> None:
    end = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("hello", "ours"), [(0, False), ({"ok": True, "tracker": "rpcsys"}, True)])
def test_it_sends_tvms_messages_and_detects_our_tracker(hello: Any, ours: bool) -> None:
    async def main() -> None:
        async with linked(hello) as (tracker, recorded):
            assert recorded.link.ours is ours
            recorded.link.give(wire.Put("a:b", 9090, "a:b:c", "lab"))
            recorded.link.give(wire.UpdateInfo("server:proxy[a:b,c]", None, 9090))
            await until(lambda: len(tracker.received) >= 3)
            assert [3, "a:b", [9090, "a:b:c"], "lab"] in tracker.received
            assert [5, {"key": "server:proxy[a:b,c]", "addr": [None, 9090]}] in tracker.received

    asyncio.run(main())


def test_it_polls_the_pending_match_keys() -> None:
    async def main() -> None:
        async with linked() as (tracker, recorded):
            tracker.pending = ["k:1"]
            await until(lambda: recorded.events.count(("k:1",)) > 2)

    asyncio.run(main())


@pytest.mark.parametrize("what", ["hangs up", "falls silent", "talks nonsense"])
def test_a_lost_connection_is_made_again(what: str) -> None:
    async def main() -> None:
        async with linked() as (tracker, recorded):
            if what == "hangs up":
                tracker.hang_up()
            elif what == "falls silent":
                tracker.silent = True
                await until(lambda: "down" in recorded.events)
                tracker.silent = False
            else:
                tracker.pending = 5
                await until(lambda: "down" in recorded.events)
                tracker.pending = []
            await until(lambda: recorded.events.count("up") >= 2)
            assert recorded.link.up
            changes = [event for event in recorded.events if event in ("up", "down")]
            assert changes == ["up", "down"] * (len(changes) // 2) + ["up"]

    asyncio.run(main())


def test_it_connects_to_a_tracker_that_starts_later() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        recorded = RecordedLink(("127.0.0.1", port))
        await asyncio.sleep(0.3)
        assert recorded.events == []
        assert recorded.link.ours is None
        recorded.link.give(wire.Put("k", 1, "k:1", None))  # dropped: the link is down
        tracker = ScriptedTracker(0)
        await tracker.start(port)
        await until(lambda: recorded.events == ["up"])
        recorded.link.close()
        tracker.close()

    asyncio.run(main())


def test_a_refused_offer_is_logged_and_keeps_the_link(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with linked() as (tracker, recorded):
            tracker.put = -1
            recorded.link.give(wire.Put("k", 1, "k:1", None))
            await until(lambda: "refused Put" in caplog.text)
            assert recorded.link.up

    asyncio.run(main())


def test_reconnect_is_down_and_up_on_a_new_connection() -> None:
    async def main() -> None:
        async with linked() as (tracker, recorded):
            recorded.link.reconnect()
            await until(lambda: [e for e in recorded.events if e in ("up", "down")] == ["up", "down", "up"])
            assert sum(received[0] == 1 for received in tracker.received) == 2

    asyncio.run(main())


def test_a_closed_link_does_not_reconnect() -> None:
    async def main() -> None:
        async with linked() as (tracker, recorded):
            recorded.link.close()
            recorded.link.reconnect()
            await asyncio.sleep(0.2)
            assert recorded.events[0] == "up"
            assert recorded.events[-1] == "down"
            assert sum(received[0] == 1 for received in tracker.received) == 1

    asyncio.run(main())


def test_pauses_grow_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    monkeypatch.setattr(tracker_link, "LONGEST_S", 1.0)

    async def main() -> None:
        recorded = RecordedLink(("127.0.0.1", 1))
        again = recorded.link._after

        def note(seconds: float, what) -> None:
            if what == recorded.link._connect:
                pauses.append(seconds)
            again(seconds / 100, what)

        monkeypatch.setattr(recorded.link, "_after", note)
        await until(lambda: len(pauses) > 10)
        recorded.link.close()

    asyncio.run(main())
    assert pauses[0] < 0.1 < pauses[4]
    assert all(1.0 <= pause <= 1.5 for pause in pauses[-3:])
    assert len(set(pauses)) == len(pauses)


@pytest.mark.parametrize("fate", ["hangs", "is killed"])
def test_it_registers_where_another_replica_leads(fate: str) -> None:
    async def main() -> None:
        with replicas() as group:
            recorded = RecordedLink(Addresses([one.address for one in group.each]))
            await until(lambda: "up" in recorded.events and sum(one.lookouts for one in group.each) == 1)
            assert recorded.link.address == group.each[0].address
            group.each[0].pause() if fate == "hangs" else group.each[0].die()
            group.lead(2)
            await until(lambda: recorded.events.count("up") == 2)
            assert recorded.link.address == group.each[2].address
            recorded.link.give(wire.Put("a:b", 9090, "a:b:c", "lab"))
            await until(lambda: [3, "a:b", [9090, "a:b:c"], "lab"] in group.each[2].received)
            recorded.link.close()
            await until(lambda: not any(one.lookouts for one in group.each))

    asyncio.run(main())
