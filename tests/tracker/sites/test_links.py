"""The link to another site: introduced, silent, of another site, no site at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rpcsys.tracker.sites import links
from rpcsys.tracker.sites.links import SiteLink
from tests.tracker.sites.scripted import RAW, WELCOME, Script, ScriptedSite, paris, until


def run(script: Script, test: Callable[[ScriptedSite, SiteLink, list[Any]], Awaitable[None]]) -> list[Any]:
    """Run a test with a link to a scripted site; what was called, in order."""
    called: list[Any] = []

    async def work() -> None:
        peer = ScriptedSite(script)
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


def test_it_introduces_itself_and_carries_questions() -> None:
    async def test(peer: ScriptedSite, link: SiteLink, called: list[Any]) -> None:
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

    async def test(peer: ScriptedSite, link: SiteLink, called: list[Any]) -> None:
        await until(lambda: len(peer.heard) >= 4)  # it is tried again

    assert run(script, test) == []
    assert [why in record.message for record in caplog.records if record.levelno == logging.WARNING] == [True]


def test_the_tracker_there_is_tvms(caplog: pytest.LogCaptureFixture) -> None:
    async def test(peer: ScriptedSite, link: SiteLink, called: list[Any]) -> None:
        await until(lambda: len(peer.heard) >= 2)

    assert run(lambda message: 0, test) == []
    assert "the tracker there is TVM's" in caplog.text


def test_a_site_that_falls_silent_is_cut_off_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PING_S", 0.05)
    monkeypatch.setattr(links, "SILENT_S", 0.5)
    silent: list[bool] = []

    async def test(peer: ScriptedSite, link: SiteLink, called: list[Any]) -> None:
        await until(lambda: peer.heard.count([1]) >= 2, link.tick)
        silent.append(True)
        await until(lambda: "cut" in called, link.tick)
        silent.clear()
        await until(lambda: called == ["up", "cut", "up"], link.tick)

    assert run(lambda message: None if silent else paris(message), test) == ["up", "cut", "up"]


def test_a_site_that_never_answers_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SILENT_S", 0.2)

    async def test(peer: ScriptedSite, link: SiteLink, called: list[Any]) -> None:
        await until(lambda: len(peer.heard) >= 4, link.tick)

    assert run(lambda message: WELCOME if type(message) is list else None, test) == []


def test_bytes_that_are_no_frame_end_the_link() -> None:
    async def test(peer: ScriptedSite, link: SiteLink, called: list[Any]) -> None:
        await until(lambda: link.up)
        peer.script = lambda message: RAW
        link.send({"op": "guest", "id": 5})
        await until(lambda: "cut" in called)

    assert "cut" in run(paris, test)
