"""A site's tracker with scripted trackers of other sites, and links that claim to be of one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rpcsys import logs
from rpcsys.daemon.acceptor import Acceptor
from rpcsys.serve import bind
from rpcsys.tracker.config import parse
from rpcsys.tracker.service import TrackerService
from rpcsys.tracker.sites import service as sites
from tests.tracker.sites.scripted import RAW, FramesPeer, Script, ScriptedSite, paris, until

LEASE = {"lease": "paris.1-1", "epoch": 1, "key": "rpi4", "host": "10.2.0.9", "port": 9090, "matchkey": "rpi4:a"}
PLACE = {"event": "queued", "position": 1, "ahead": 0, "ticket": "7@paris.1"}
REQUEST = {"op": "request", "id": 3, "key": "rpi4", "labels": {"site": "paris"}}
HERE = "127.0.0.1"
PARIS = {"site": "paris"}


@pytest.fixture(autouse=True)
def _logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker is the only one of its process, with the log that its command has set up."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.setup("rpcsys-tracker")


@dataclass
class Berlin:
    """The tracker that is tested, and the scripted one of its peer."""

    service: TrackerService
    port: int
    peer: ScriptedSite

    @property
    def line(self) -> str:
        return self.service.state.records.sites_text

    def metrics(self) -> dict[str, float]:
        """What a scrape has of the peer."""
        samples = (sample for family in self.service.observer.metrics.collect() for sample in family.samples)
        return {sample.name.partition("_site_")[2]: sample.value for sample in samples if sample.labels == PARIS}

    async def connect(self) -> FramesPeer:
        made = await FramesPeer.connect(self.port)
        await made.ask([1, {"op": "hello", "version": "0", "user": "ann"}])
        return made

    async def reached(self) -> None:
        await until(lambda: self.line == "site berlin; peers: paris")

    def asked(self, op: str) -> list[Any]:
        """What the peer was asked for guests."""
        return [message["ask"] for message in self.peer.heard if type(message) is dict and message.get("op") == "guest"
                and message["ask"]["op"] == op]  # fmt: skip


def run(test: Callable[[Berlin], Awaitable[None]], script: Script = paris, host: str = HERE) -> None:
    """Run a test with Berlin's tracker, whose peer Paris is scripted."""

    async def work() -> None:
        peer = ScriptedSite(script)
        port = await peer.serve()
        listener = bind(HERE, 0, 1)
        service = TrackerService(parse(["--site", "berlin", "--peer", f"paris={host}:{port}"]))
        acceptor = Acceptor(listener, service.accept)
        try:
            await test(Berlin(service, acceptor.port, peer))
        finally:
            acceptor.close()
            service.close()
            peer.server.close()

    asyncio.run(work())


def answering(reply: Callable[[dict[str, Any]], Any]) -> Script:
    """Paris, which answers questions for guests so."""

    def script(message: Any) -> Any:
        return reply(message["ask"]) if type(message) is dict and message["op"] == "guest" else paris(message)

    return script


def test_a_grant_of_the_peer_is_the_clients() -> None:
    async def test(berlin: Berlin) -> None:
        await berlin.reached()
        client = await berlin.connect()
        assert await client.ask(REQUEST) == {"id": 3, "ok": True, "leases": [LEASE]}
        (asked,) = berlin.asked("request")
        assert (asked["key"], asked["labels"]) == ("rpi4", {})
        guest = next(message for message in berlin.peer.heard if type(message) is dict and message["op"] == "guest")
        assert (guest["user"], guest["address"]) == ("ann", HERE)
        answer = await client.ask({"op": "release", "id": 4, "lease": "paris.1-1"})
        assert (answer["id"], answer["ok"]) == (4, True)
        assert berlin.asked("release")[0]["lease"] == "paris.1-1"
        client.close()
        await until(lambda: berlin.peer.heard[-1]["op"] == "guest_left")
        assert berlin.metrics() == {"reached": 1, "lent_total": 0, "borrowed_total": 1}
        berlin.peer.script = lambda message: RAW
        await until(lambda: not berlin.metrics()["reached"])

    run(test, answering(lambda ask: {"id": ask["id"], "ok": True, "leases": [LEASE]}))


def test_what_guests_are_granted_is_counted() -> None:
    async def test(berlin: Berlin) -> None:
        board, link = await berlin.connect(), await berlin.connect()
        assert await board.ask([3, "rpi4", [9090, "rpi4:1"], None]) == 0
        await link.ask(INTRODUCTION)
        answer = await link.ask({**GUEST, "ask": {**REQUEST, "id": 5, "labels": {}}})
        assert [lease["matchkey"] for lease in answer["leases"]] == ["rpi4:1"]
        assert (await link.ask({**GUEST, "ask": {**REQUEST, "id": 6, "labels": {}}}))["event"] == "queued"
        assert berlin.metrics()["lent_total"] == 1
        board.close()
        link.close()

    run(test)


def test_a_client_of_tvm_says_the_site_behind_its_key() -> None:
    async def test(berlin: Berlin) -> None:
        await berlin.reached()
        client = await FramesPeer.connect(berlin.port)
        assert await client.ask([4, "rpi4@paris", "", 2]) == [0, ["10.2.0.9", 9090, "rpi4:a"]]
        (asked,) = berlin.asked("request")
        assert (asked["key"], asked["priority"], asked["wait_for_key"]) == ("rpi4", 2, True)
        client.close()

    run(test, answering(lambda ask: {"id": ask["id"], "ok": True, "leases": [LEASE]}))


@pytest.mark.parametrize("false", [{}, {"ok": True}, *({"ok": True, "leases": each} for each in ([1], [LEASE, LEASE]))])
def test_an_answer_without_sense_cuts_the_site_off_and_nothing_else(false: dict[str, Any]) -> None:
    async def test(berlin: Berlin) -> None:
        await berlin.reached()
        client = await berlin.connect()
        event = await client.ask(REQUEST)
        assert (event["event"], event["note"]) == ("queued", "site paris cannot be reached")
        berlin.peer.script = answering(lambda ask: {"id": ask["id"], **PLACE})
        while event["ticket"] is None or event["note"]:
            event = await client.receive()
        assert event["ticket"] == "7@paris.1"
        client.close()

    run(test, answering(lambda ask: {"id": ask["id"], **false}))


def test_a_request_ends_in_time_also_when_no_site_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "GRACE_S", 0.1)
    monkeypatch.setattr(sites, "TICK_S", 0.1)

    async def test(berlin: Berlin) -> None:
        await berlin.reached()
        client = await berlin.connect()
        answer = await client.ask({**REQUEST, "wait_timeout": 0.1})
        assert (answer["id"], answer["error"]) == (3, "WaitTimeout")
        await until(lambda: berlin.asked("cancel"))
        client.close()

    run(test, answering(lambda ask: None))


def test_mistakes_are_refused_in_a_sentence() -> None:
    async def test(berlin: Berlin) -> None:
        await berlin.reached()
        client = await berlin.connect()
        answer = await client.ask({**REQUEST, "labels": {"site": "rome"}})
        assert answer["message"] == "site 'rome' is not known here; there are: any, berlin, paris"
        client.close()
        client = await berlin.connect()
        answer = await client.ask({**REQUEST, "labels": {"site": "berlin"}, "wait_timeout": 0})
        assert answer.get("event") == "queued", "of its own site"
        client.close()

    run(test)


# --- links from other sites ----------------------------------------------------------------------

INTRODUCTION = {"op": "site", "id": 0, "site": "paris"}
GUEST = {"op": "guest", "id": 5, "guest": 1, "user": "jo", "address": "10.2.0.4"}


def test_a_peer_is_believed_by_its_address_also_by_its_name() -> None:
    async def test(berlin: Berlin) -> None:
        known = berlin.service.sites
        assert known is not None
        await until(lambda: HERE in known._trusted["paris"])
        link = await berlin.connect()
        assert (await link.ask(INTRODUCTION))["ok"]
        link.close()

    run(test, host="localhost")


def test_another_address_is_refused_with_what_to_do() -> None:
    async def test(berlin: Berlin) -> None:
        link = await berlin.connect()
        answer = await link.ask(INTRODUCTION)
        assert answer["error"] == "Forbidden"
        assert answer["message"].startswith(f"it comes from {HERE}: name that in --peer paris=…, too")
        assert (await link.ask({**GUEST, "ask": {**REQUEST, "id": 5}}))["error"] == "Forbidden"
        link.close()

    run(test, host="127.0.0.2")


def test_a_guest_asks_for_what_clients_ask_and_nothing_else() -> None:
    async def test(berlin: Berlin) -> None:
        link = await berlin.connect()
        assert await link.ask(INTRODUCTION) == {"id": 0, "ok": True, "site": "berlin"}
        assert "said already" in (await link.ask({**INTRODUCTION, "id": 1}))["message"]
        event = await link.ask({**GUEST, "ask": {**REQUEST, "id": 5, "labels": {}}})
        assert (event["id"], event["event"]) == (5, "queued")
        (request,) = berlin.service.state.records.waiting.values()
        assert (request.user, request.priority, request.address) == ("jo@paris", 0, "10.2.0.4")
        for false in ({"op": "drain", "id": 6, "server": "x"}, {"id": 6, "ok": True}, {}):
            answer = await link.ask({**GUEST, "id": 6, "ask": false})
            assert (answer["id"], answer["ok"], answer["error"]) == (6, False, "BadRequest")
        via = {"op": "via", "address": ["10.0.0.1", 1], "proxy": None}
        assert (await link.ask({**GUEST, "id": 7, "ask": via}))["error"] == "BadRequest"
        link.close()
        await until(lambda: not berlin.service.state.records.waiting)

    run(test)


def test_a_newer_link_of_a_site_ends_the_one_before() -> None:
    async def test(berlin: Berlin) -> None:
        first, second = await berlin.connect(), await berlin.connect()
        await first.ask(INTRODUCTION)
        await first.ask({**GUEST, "ask": {**REQUEST, "id": 5, "labels": {}}})
        await second.ask(INTRODUCTION)
        assert await first.receive() is None
        assert not berlin.service.state.records.waiting
        second.close()

    run(test)


def test_a_link_that_falls_silent_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "SILENT_S", 0.3)
    monkeypatch.setattr(sites, "TICK_S", 0.1)

    async def test(berlin: Berlin) -> None:
        link = await berlin.connect()
        await link.ask(INTRODUCTION)
        with contextlib.suppress(ConnectionResetError):
            assert await link.receive() is None
        link.close()

    run(test)


def test_a_tracker_of_one_site_knows_none_of_it() -> None:
    async def work() -> None:
        listener = bind(HERE, 0, 1)
        service = TrackerService(parse([]))
        acceptor = Acceptor(listener, service.accept)
        peer = await FramesPeer.connect(acceptor.port)
        answer = await peer.ask(INTRODUCTION)
        assert answer["message"] == "unknown op 'site'"
        peer.close()
        acceptor.close()
        service.close()

    asyncio.run(work())
