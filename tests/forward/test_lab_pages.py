"""The lab's pages on a desk: what is answered there, and to whom."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcsys.daemon.acceptor import Acceptor
from rpcsys.forward import lab_pages, owners
from rpcsys.forward.config import listen
from rpcsys.forward.service import ForwardService
from rpcsys.wire import page_body
from tests.forward.desks import Desk, forwarder, run, until
from tests.scripted_peers import ScriptedTracker

HTML = "text/html; charset=utf-8"


def answers(question: dict[str, Any]) -> list[Any]:
    """A tracker with one page."""
    assert question["op"] == "page"
    number = question["id"]
    if question["path"] == "/":
        return [{"id": number, "ok": True, "kind": HTML, "body": page_body.pack(b"<p>a lab</p>")}]
    if question["path"] == "/odd":
        return [{"id": number, "ok": True, "kind": HTML, "body": "*"}]
    return [{"id": number, "ok": False, "error": "UnknownPage", "message": "there are: /"}]


@asynccontextmanager
async def pages(tracker: ScriptedTracker) -> AsyncIterator[tuple[ForwardService, Callable[..., Any]]]:
    """A forwarder, and a function that sends a request to its page: the status, and the whole answer."""
    async with forwarder(tracker.address) as service:
        web = Acceptor(listen(("127.0.0.1", 0)), service.accept_for_page)

        async def ask(path: str = "/", method: str = "GET", **fields: str) -> tuple[int, bytes]:
            desk = await Desk.open(web.port)
            head = {"Host": f"127.0.0.1:{web.port}", **fields, "Connection": "close"}
            lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in head.items()), "", ""]
            desk.writer.write("\r\n".join(lines).encode())
            got = await desk.reader.read()
            desk.writer.close()
            return int(got.split()[1]) if got else 0, got

        try:
            yield service, ask
        finally:
            web.close()


def test_pages_are_the_trackers() -> None:
    async def main() -> None:
        with ScriptedTracker(answers) as tracker:
            async with pages(tracker) as (_, ask):
                status, got = await ask()
                assert status == 200
                assert got.endswith(b"<p>a lab</p>")
                assert b"Content-Type: text/html" in got
                assert b"Content-Security-Policy: default-src 'self'" in got
                assert (await asyncio.gather(*(ask() for _ in range(20))))[19][0] == 200
                assert await ask("/nowhere") == (404, (await ask("/nowhere"))[1])
                assert (await ask("/odd"))[0] == 502
                assert len(tracker._connections) == 1

    run(main())


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:9180"}, 200),
        ({"Host": "evil.example"}, 403),  # its name resolves to this machine
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:8000"}, 403),  # another program's page on this machine
    ],
)
def test_a_page_of_another_site_is_refused(fields: dict[str, str], status: int) -> None:
    async def main() -> None:
        with ScriptedTracker(answers) as tracker:
            async with pages(tracker) as (_, ask):
                found, got = await ask(**fields)
                assert found == status
                assert (b"a lab" in got) == (status == 200)

    run(main())


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "OPTIONS", "PATCH", "EVIL"])
def test_nothing_can_be_changed(method: str) -> None:
    async def main() -> None:
        with ScriptedTracker(answers) as tracker:
            async with pages(tracker) as (_, ask):
                assert (await ask(method=method))[0] == 405
                status, got = await ask(method="HEAD")
                assert (status, b"a lab" in got) == (200, False)
                assert all(type(message) is not dict or message["path"] == "/" for message in tracker.received)

    run(main())


def test_another_users_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with ScriptedTracker(answers) as tracker:
            async with pages(tracker) as (_, ask):
                monkeypatch.setattr(owners, "uid_of", lambda *_: 4711)  # a second user cannot be caused everywhere
                try:
                    assert await ask() == (0, b"")
                except ConnectionResetError:
                    pass
                assert tracker.received == []

    run(main())


def test_without_the_tracker_the_page_says_so_and_comes_back() -> None:
    async def main() -> None:
        with ScriptedTracker(answers) as tracker:
            async with pages(tracker) as (service, ask):
                assert (await ask())[0] == 200
                for sock in tracker._connections:
                    sock.shutdown(socket.SHUT_RDWR)
                await until(lambda: service.pages._link is None)
                assert (await ask())[0] == 200
        async with pages(tracker) as (_, ask):
            status, got = await ask()
            assert status == 502
            assert b"no tracker at" in got

    run(main())


def test_a_link_that_nobody_needs_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with ScriptedTracker(answers) as tracker:
            async with pages(tracker) as (service, ask):
                assert (await ask())[0] == 200
                monkeypatch.setattr(lab_pages, "IDLE_S", 0.0)
                await until(lambda: service.pages._link is None)

    run(main())


def test_a_tracker_that_does_not_answer_is_said_to_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(lab_pages, "ANSWER_S", 0.2)
        with ScriptedTracker(lambda question: []) as tracker:
            async with pages(tracker) as (_, ask):
                status, got = await ask()
                assert status == 504
                assert b"has not answered" in got

    run(main())
