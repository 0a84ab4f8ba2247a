"""From frames to messages, on the shortest way: many frames are as they were before, or nearly so.

A request of TVM's clients comes again byte by byte, and so does a heartbeat's answer; of a request of ours only the id is
new, and of a server's offer the random part of the match key. To read one again would cost as much as to serve it.
"""

from __future__ import annotations

import re
from typing import Any

from rpcsys.wire.control import QUESTION, Answer, Request
from rpcsys.wire.tracker import GetPending, Put, ToTracker, TvmRequest, TvmSummary, decode_json, parse_to_tracker

#: Frames remembered, and bytes of one: two tables of half a megabyte at most. No match key in one is too long.
MAX_REMEMBERED = 1024
MAX_REMEMBERED_BYTES = 256
_REPEATED = (TvmRequest, GetPending, TvmSummary)
_ALIVE = Answer(QUESTION, True)
_RANDOM = re.compile(rb"[0-9A-Za-z._-]+")  # what means itself in JSON, and may stand in a match key
_ID = re.compile(rb'"id": ?([1-9][0-9]{0,14})(?=[,}])')
_OTHER, _OTHER_ID = "0-another", 987_654


class MessageCache:
    """Reads the frames of all connections."""

    def __init__(self) -> None:
        self._repeated: dict[bytes, ToTracker] = {}
        self._offers: dict[tuple[bytes, bytes], Put] = {}
        self._requests: dict[tuple[bytes, bytes], tuple[Any, ...]] = {}  # all of a request but its id

    def read(self, frame: bytes) -> ToTracker:
        """What a client or a server tells the tracker with a frame.

        Raises `ProtocolError`: it is not JSON; `BadMessage`: as `rpcsys.wire.tracker.parse_to_tracker`.
        """
        if len(frame) > MAX_REMEMBERED_BYTES:
            return parse_to_tracker(decode_json(frame))
        message = self._repeated.get(frame)
        if message is None:
            message = self._request(frame) if frame.startswith(b"{") else self._offer(frame)
        if message is None:
            message = parse_to_tracker(decode_json(frame))
            self._note(frame, message)
        return message

    def _offer(self, frame: bytes) -> Put | None:
        """The offer that the frame is, if one like it is remembered."""
        start, end = _last_part(frame)
        known = self._offers.get((frame[:start], frame[end:]))
        if known is None or not _RANDOM.fullmatch(frame, start, end):
            return None
        return Put(known.key, known.port, known.match_key + frame[start:end].decode(), known.address)

    def _request(self, frame: bytes) -> Request | None:
        """The request that the frame is, if one like it is remembered."""
        found = _ID.search(frame)
        if found is None:
            return None
        known = self._requests.get((frame[: found.start(1)], frame[found.end(1) :]))
        return None if known is None else Request(int(found[1]), *known)

    def _note(self, frame: bytes, message: ToTracker) -> None:
        if isinstance(message, _REPEATED) or (type(message) is Answer and message == _ALIVE):
            _remember(self._repeated, frame, message)
        elif type(message) is Put:
            start, end = _last_part(frame)
            if _RANDOM.fullmatch(frame, start, end):
                prefix = message.match_key.removesuffix(frame[start:end].decode())
                like = Put(message.key, message.port, prefix, message.address)
                other = Put(message.key, message.port, prefix + _OTHER, message.address)
                if _is(other, frame[:start], _OTHER, frame[end:]):
                    _remember(self._offers, (frame[:start], frame[end:]), like)
        elif type(message) is Request and message.ticket is None and (found := _ID.search(frame)):
            _, *rest = vars(message).values()
            head, tail = frame[: found.start(1)], frame[found.end(1) :]
            if _is(Request(_OTHER_ID, *rest), head, str(_OTHER_ID), tail):
                _remember(self._requests, (head, tail), tuple(rest))


def _is(message: ToTracker, head: bytes, other: str, tail: bytes) -> bool:
    """Whether ``other`` in this place makes this message: it is the end of a match key, and not of an address, say."""
    return parse_to_tracker(decode_json(head + other.encode() + tail)) == message


def _last_part(frame: bytes) -> tuple[int, int]:
    """Where the text between the last colon and the quotation mark after it begins and ends.

    That is the random part of an offer's match key: ``[3, "key", [port, "key:random"], null]``.
    """
    start = frame.rfind(b":") + 1
    return start, frame.find(b'"', start)


def _remember(table: dict[Any, Any], name: object, what: object) -> None:
    if len(table) >= MAX_REMEMBERED:
        table.clear()  # somebody makes up new ones; those in use are back at once
    table[name] = what
