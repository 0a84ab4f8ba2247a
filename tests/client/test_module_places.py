"""What a tracker says of places of modules, and what of it a lab's member uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rpcsys.client import module_places
from rpcsys.client.module_places import ModulePlaceKey
from rpcsys.errors import NoTls, ProtocolError

PINNED = f"rpi4:t1-{'1f' * 32}-{'5c' * 16}"
ROW = {
    **dict.fromkeys(("name", "version", "server"), "edge"),
    **dict.fromkeys(("workers", "running", "waiting", "clients"), 1),
    "host": "10.0.0.8",
    "port": 9090,
    "key": "serve:1",
}


def link(answer: dict[str, Any], *, member: bool = True) -> Any:
    asked: list[Any] = []

    def ask(op: str, timeout: float, **fields: Any) -> dict[str, Any]:
        asked.append((op, fields))
        return answer

    return SimpleNamespace(ask=ask, credential=object() if member else None, asked=asked)


def test_a_member_says_the_match_key_of_each_place():
    found = link(
        {"modules": [{**ROW, "matchkey": PINNED}, {**ROW, "port": 9091, "plain": True}, {**ROW, "port": 9092}]}
    )
    assert module_places.serving(found, "head") == [
        ModulePlaceKey("10.0.0.8", 9090, PINNED),
        ModulePlaceKey("10.0.0.8", 9091, "serve:1"),
    ]
    assert found.asked == [("resolve", {"name": "head", "admit": True})]


@pytest.mark.parametrize("more", [{}, {"matchkey": "rpi4:1"}, {"matchkey": PINNED.rpartition("-")[0]}])
def test_a_member_says_nothing_where_nothing_is_encrypted(more):
    with pytest.raises(NoTls, match="the server edge encrypts no connections to modules"):
        module_places.serving(link({"modules": [{**ROW, **more}]}), "head")
    with pytest.raises(NoTls, match="the server edge encrypts no connections to modules"):
        module_places.deploying(link({**ROW, **more}), "edge")


def test_others_say_what_there_is():
    found = link({"modules": [ROW, {**ROW, "matchkey": PINNED}]}, member=False)
    assert [place.key for place in module_places.serving(found, "head")] == ["serve:1", PINNED]


def test_where_one_deploys():
    found = link({"host": "10.0.0.8", "port": "9090", "key": "", "matchkey": PINNED})
    assert module_places.deploying(found, "edge") == ModulePlaceKey("10.0.0.8", 9090, PINNED)
    assert found.asked == [("admission", {"what": "deploy", "server": "edge"})]


@pytest.mark.parametrize(
    "more", [{"host": 1}, {"port": "x"}, {"key": None}, {"matchkey": 3}, {"matchkey": ""}, {"plain": "yes"}]
)
def test_answers_that_make_no_sense(more):
    with pytest.raises(ProtocolError, match="the tracker's answer makes no sense"):
        module_places.serving(link({"modules": [{**ROW, **more}]}), "head")
    with pytest.raises(ProtocolError, match="the tracker's answer makes no sense"):
        module_places.deploying(link({**ROW, **more}), "edge")


def test_a_servers_identity_holds_no_secret():
    place = ModulePlaceKey("10.0.0.8", 9090, PINNED)
    assert place.where == f"10.0.0.8:9090 {PINNED.rpartition('-')[0]}"
    assert ModulePlaceKey("10.0.0.8", 9090, "").where == "10.0.0.8:9090"
