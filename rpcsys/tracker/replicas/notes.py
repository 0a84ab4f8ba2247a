"""Tells those who wait for a device why, while the leader cannot write what it decides.

A note promises nothing, so it need not wait for the engine as answers do. It goes with the last place that was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rpcsys.tracker.connection import PeerConnection
from rpcsys.tracker.records import Records
from rpcsys.tracker.replicas.term import Held
from rpcsys.wire.tracker import MAGIC_BYTES, TrackerFrameReader, decode_json

GRANT = frozenset(("id", "ok", "leases"))  # what the answer with leases has, and no other answer
Place = tuple[int, int]  # of a request: its connection's number, and its ID


class TroubleNotes:
    """Which requests have been told of what trouble."""

    def __init__(self) -> None:
        self._told: dict[Place, str] = {}

    def begin(self, records: Records, held: Iterable[Held], trouble: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """The events, by the number of the connection, for those who wait and have not been told of this trouble."""
        waiting = {(each.conn, each.id): each for each in records.waiting.values() if each.id is not None}
        told = self._told
        self._told = dict.fromkeys((*waiting, *_granted(held)), trouble)
        for conn, request_id in self._told:
            if told.get((conn, request_id)) != trouble:
                request = waiting.get((conn, request_id))
                yield conn, _event(request_id, 1 if request is None else max(1, request.told), trouble)

    def end(self, records: Records) -> Iterator[tuple[int, dict[str, Any]]]:
        """The events for those who wait still, once the trouble is over."""
        told, self._told = self._told, {}
        for request in records.waiting.values():
            if request.id is not None and (request.conn, request.id) in told:
                yield request.conn, _event(request.id, max(1, request.told), request.noted)


def _event(request: int, position: int, note: str) -> dict[str, Any]:
    place: dict[str, Any] = {"position": position, "ahead": position - 1, "eta_s": None, "ticket": None, "holders": []}
    return {"id": request, "event": "queued", **place, "note": note}


def _granted(held: Iterable[Held]) -> Iterator[Place]:
    """The requests whose leases are held back: their clients wait as those in a queue do."""
    for receiver, data in held:
        if isinstance(receiver, PeerConnection):
            yield from ((receiver.number, request) for request in granted(data))


def granted(data: bytes) -> Iterator[int]:
    """The requests that frames of the tracker's answer with leases."""
    frames = TrackerFrameReader(magic=data.startswith(MAGIC_BYTES))
    frames.feed(data)
    while (frame := frames.next()) is not None:
        if b'"leases"' in frame:
            message = decode_json(frame)
            if type(message) is dict and message.keys() == GRANT:
                yield message["id"]
