"""The pages of a replica, whether it leads or not."""

from __future__ import annotations

import json

import pytest

from rpcsys.daemon.http import NoPage
from rpcsys.tracker.replicas.engine import Leader
from rpcsys.tracker.replicas.pages import ReplicaPages

LED = {"/": lambda: ("text/html", b"page"), "/metrics": lambda: ("text/plain", b"of the tracker alone")}


def pages(led: bool, leader: Leader | None = None) -> ReplicaPages:
    return ReplicaPages(
        lambda: LED if led else None, lambda: leader, lambda: {"term": 4}, lambda: ("text/plain", b"all")
    )


def body(made: ReplicaPages, path: str) -> bytes:
    assert path in made
    content = made[path]()
    assert isinstance(content, tuple)
    return content[1]


def test_a_leader_has_the_pages_of_the_tracker_and_its_own() -> None:
    made = pages(led=True)
    assert body(made, "/") == b"page"
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
