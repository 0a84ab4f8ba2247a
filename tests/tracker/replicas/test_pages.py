"""The pages of a replica, whether it leads or not."""

from __future__ import annotations

import asyncio
import json

import pytest

from rpcsys.daemon.http import NoPage
from rpcsys.tracker.replicas import pages as pages_module
from rpcsys.tracker.replicas.engine import Leader
from rpcsys.tracker.replicas.pages import AnswerReceiver, Hold, ReplicaPages

LED = {
    "/": lambda: ("text/html", b"page"),
    "/page.css": lambda: ("text/css", b"style"),
    "/api/lab": lambda: ("application/json", b"{}"),
    "/metrics": lambda: ("text/plain", b"of the tracker alone"),
}


def pages(led: bool, leader: Leader | None = None, hold: Hold = lambda receiver, data: False) -> ReplicaPages:
    metrics, found = lambda: ("text/plain", b"all"), LED if led else None
    return ReplicaPages(lambda: found, lambda: leader, lambda: {"term": 4}, metrics, lambda: hold, lambda: "it is full")


def body(made: ReplicaPages, path: str) -> bytes:
    assert path in made
    content = made[path]()
    assert isinstance(content, tuple)
    return content[1]


def test_a_leader_has_the_pages_of_the_tracker_and_its_own() -> None:
    made = pages(led=True)
    assert body(made, "/page.css") == b"style"
    assert body(made, "/metrics") == b"all"
    assert b"leads" in body(made, "/leader")
    assert json.loads(body(made, "/api/replicas")) == {"term": 4}
    assert "/nothing" not in made
    assert {"/", "/leader", "/api/replicas"} <= {*made}


@pytest.mark.parametrize(
    ("leader", "words"),
    [
        (None, "no other does"),
        (Leader(("lab-2", 9190), 0, "1", "a"), "lab-2:9190 does"),
        (Leader(("lab-2", 9190), 8080, "1", "a"), "http://lab-2:8080/"),
    ],
)
@pytest.mark.parametrize("path", ["/", "/leader", "/api/summary"])
def test_a_standby_says_who_leads(path: str, leader: Leader | None, words: str) -> None:
    made = pages(led=False, leader=leader)
    assert path in made
    with pytest.raises(NoPage, match=words) as refused:
        made[path]()
    assert refused.value.args[0] == 503
    assert body(made, "/healthz") == b"ok\n"
    assert body(made, "/metrics") == b"all"


@pytest.mark.parametrize("path", ["/", "/api/lab"])
@pytest.mark.parametrize("late", [False, True])
def test_a_page_with_the_state_waits_until_it_is_written(
    path: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "HELD_S", 1.0 if late else 60.0)
    held: list[AnswerReceiver] = []

    def hold(receiver: AnswerReceiver, data: bytes) -> bool:
        held.append(receiver)
        return True

    async def ask() -> object:
        page = asyncio.ensure_future(pages(led=True, hold=hold)[path]())
        await asyncio.sleep(0.1)
        assert not page.done()
        if not late:
            held[0].send_held(b"")
        return await page

    if late:
        with pytest.raises(NoPage, match="it is full"):
            asyncio.run(ask())
    else:
        assert asyncio.run(ask()) == LED[path]()
    assert body(pages(led=True, hold=hold), "/page.css") == b"style"  # it has none of the state


def test_a_page_that_need_not_wait_does_not() -> None:
    assert asyncio.run(pages(led=True)["/api/lab"]()) == ("application/json", b"{}")
