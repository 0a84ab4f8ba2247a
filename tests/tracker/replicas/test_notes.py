"""Who waits is told of the engine's trouble: once each, also whose lease is held back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from rpcsys.tracker.connection import PeerConnection
from rpcsys.tracker.records import Records
from rpcsys.tracker.replicas.notes import TroubleNotes, granted
from rpcsys.wire.tracker import MAGIC_BYTES, encode


def records(*waiting: Any) -> Records:
    return cast("Records", SimpleNamespace(waiting=dict(enumerate(waiting))))


def request(conn: int, id: int | None, told: int = 1, noted: str = "") -> Any:
    return SimpleNamespace(conn=conn, id=id, told=told, noted=noted)


def told(events: Any) -> list[tuple[int, int, int, str]]:
    return [(conn, event["id"], event["position"], event["note"]) for conn, event in events]


def test_each_that_waits_is_told_once_and_tvms_clients_are_not() -> None:
    notes, waiting = TroubleNotes(), [request(1, 7, 4, "its board is drained"), request(2, None)]
    assert told(notes.begin(records(*waiting), [], "no etcd answers")) == [(1, 7, 4, "no etcd answers")]
    waiting.append(request(3, 8))
    assert told(notes.begin(records(*waiting), [], "no etcd answers")) == [(3, 8, 1, "no etcd answers")]
    assert len(told(notes.begin(records(*waiting), [], "etcd is full"))) == 2
    waiting.append(request(4, 9))
    assert told(notes.end(records(*waiting))) == [(1, 7, 4, "its board is drained"), (3, 8, 1, "")]
    assert told(notes.end(records(*waiting))) == []


def test_whose_lease_is_held_back_waits_too() -> None:
    connection = PeerConnection.__new__(PeerConnection)
    connection.number = 5
    held = [(connection, encode({"id": 7, "ok": True, "leases": [{}]}))]
    assert told(TroubleNotes().begin(records(), held, "it is full")) == [(5, 7, 1, "it is full")]


def test_only_an_answer_with_leases_is_a_grant() -> None:
    frames = (
        {"id": 1, "ok": True, "leases": []}, {"id": 2, "ok": True, "leases": [], "before": None}, [0, ["leases"]],
        {"id": 3, "event": "queued", "note": "leases"}, 0, {"id": 4, "ok": True, "leases": []},
    )  # fmt: skip
    data = b"".join(map(encode, frames))
    assert [*granted(data)] == [*granted(MAGIC_BYTES + data)] == [1, 4]
