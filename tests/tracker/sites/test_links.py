"""The link to another site: introduced, silent, of another site, no site at all."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rpcsys.tracker.sites import links
from rpcsys.tracker.sites.links import SiteLink
from rpcsys.wire.tracker import MAGIC_BYTES, TrackerFrameReader, decode_json, encode

SOON_S = 30.0
RAW = b"\xff\xff\xff\xff"  # no length of a frame
WELCOME = {"ok": True, "tracker": "rpcsys", "version": "0", "capabilities": []}
Script = Callable[[Any], Any]


class Peer:
    """A scripted tracker: ``script`` makes an answer of each message, None for none."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.heard: list[Any] = []

    async def serve(self) -> int:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames, greeted = TrackerFrameReader(), False
        while data := await reader.read(1 << 16):
            frames.feed(data)
            while (frame := frames.next()) is not None or not greeted:
                if not greeted:
                    greeted = not frames.magic_due
                    writer.write(MAGIC_BYTES)
                if frame is not None:
                    message = decode_json(frame)
                    self.heard.append(message)
                    answer = self.script(message)
                    if answer is not None:
                        writer.write(answer if answer is RAW else encode(answer))
                elif greeted:
                    break
        writer.close()


def paris(message: Any) -> Any:
    """A tracker of the site Paris."""
    if type(message) is list:
        return WELCOME if len(message) > 1 else 0
    if message["op"] == "site":
        return {"id": message["id"], "ok": True, "site": "paris"}
    return {"id": message["id"], "ok": True}


def run(script: Script, test: Callable[[Peer, SiteLink, list[Any]], Awaitable[None]]) -> list[Any]:
    """Run a test with a link to a scripted site; what was called, in order."""
    called: list[Any] = []

    async def work() -> None:
        peer = Peer(script)
        port = await peer.serve()
        link = SiteLink(
            "berlin", "paris", ("127.0.0.1", port), lambda site: called.append("up"),
            lambda site: called.append("cut"), lambda site, message: called.append(message),
        )  # fmt: skip
        try:
            await test(peer, link, called)
        finally:
            link.close()
            peer.server.close()

    asyncio.run(work())
    return called


async def until(found: Callable[[], Any], link: SiteLink | None = None) -> None:
    """Wait until something is found; ``link`` has its ticks meanwhile."""
    end = time.monotonic() + SOON_S
    while not found():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
        if link is not None:
            link.tick()


def test_it_introduces_itself_and_carries_questions() -> None:
    async def test(peer: Peer, link: SiteLink, called: list[Any]) -> None:
        link.send({"op": "guest", "id": 4})  # it is not up
        await until(lambda: link.up)
        link.send({"op": "guest", "id": 5})
        await until(lambda: len(called) == 2)
        assert [message["op"] for message in peer.heard if type(message) is dict] == ["site", "guest"]
        assert peer.heard[1]["site"] == "berlin"

    assert run(paris, test) == ["up", {"id": 5, "ok": True}]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"id": 0, "ok": True, "site": "rome"}, "the site there is 'rome'"),
        ({"id": 0, "ok": False, "error": "Forbidden", "message": "it comes from 10.0.0.1"}, "it comes from 10.0.0.1"),
        ({"id": 0, "ok": False, "error": "BadRequest", "message": "unknown op 'site'"}, "unknown op 'site'"),
    ],
)
def test_it_is_no_such_site(answer: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture) -> None:
    def script(message: Any) -> Any:
        return WELCOME if type(message) is list else answer

    async def test(peer: Peer, link: SiteLink, called: list[Any]) -> None:
        await until(lambda: len(peer.heard) >= 4)  # it is tried again

    assert run(script, test) == []
    assert [why in record.message for record in caplog.records if record.levelno == logging.WARNING] == [True]


def test_the_tracker_there_is_tvms(caplog: pytest.LogCaptureFixture) -> None:
    async def test(peer: Peer, link: SiteLink, called: list[Any]) -> None:
        await until(lambda: len(peer.heard) >= 2)

    assert run(lambda message: 0, test) == []
    assert "the tracker there is TVM's" in caplog.text


def test_a_site_that_falls_silent_is_cut_off_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PING_S", 0.05)
    monkeypatch.setattr(links, "SILENT_S", 0.5)
    silent: list[bool] = []

    async def test(peer: Peer, link: SiteLink, called: list[Any]) -> None:
        await until(lambda: peer.heard.count([1]) >= 2, link)
        silent.append(True)
        await until(lambda: "cut" in called, link)
        silent.clear()
        await until(lambda: called == ["up", "cut", "up"], link)

    assert run(lambda message: None if silent else paris(message), test) == ["up", "cut", "up"]


def test_a_site_that_never_answers_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SILENT_S", 0.2)

    async def test(peer: Peer, link: SiteLink, called: list[Any]) -> None:
        await until(lambda: len(peer.heard) >= 4, link)

    assert run(lambda message: WELCOME if type(message) is list else None, test) == []


def test_bytes_that_are_no_frame_end_the_link() -> None:
    async def test(peer: Peer, link: SiteLink, called: list[Any]) -> None:
        await until(lambda: link.up)
        peer.script = lambda message: RAW
        link.send({"op": "guest", "id": 5})
        await until(lambda: "cut" in called)

    assert "cut" in run(paris, test)
