"""Turns frames into messages, and parses only new ones: most frames equal an earlier one, or nearly.

TVM's requests and the answers to heartbeats repeat byte by byte. In our requests only the id changes, and in offers
the random part of the match key.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rpcsys.wire.control import QUESTION, Answer, Ask, Request
from rpcsys.wire.membership import TO_TRACKER
from rpcsys.wire.tracker import GetPending, Put, ToTracker, TvmRequest, TvmSummary, decode_json, parse_to_tracker

#: Frames kept, and bytes of one: two tables of half a megabyte at most. No match key in such a frame is too long.
MAX_REMEMBERED = 1024
MAX_REMEMBERED_BYTES = 256
_REPEATED = (TvmRequest, GetPending, TvmSummary)
_ALIVE = Answer(QUESTION, True)
#: The part that changes: a request's id, and what follows the last colon of an offer, which is ``[3, "key", [port,
#: "key:random"], null]``, if it has only characters that JSON does not escape and a match key allows.
_ID = re.compile(rb'"id": ?([1-9][0-9]{0,14})(?=[,}])')
_RANDOM = re.compile(rb':([0-9A-Za-z._-]+)"[^:]*\Z')
_OTHER, _OTHER_ID = "0-another", 987_654


class MessageCache:
    """Parses the frames of all connections. ``known``: the questions of ours, by op."""

    def __init__(self, known: dict[str, type[Ask]] = TO_TRACKER) -> None:
        self._known = known
        self._repeated: dict[bytes, ToTracker] = {}
        #: By the bytes before and behind the part that changes: an offer without it, or a request's other fields.
        self._alike: dict[tuple[bytes, bytes], Put | tuple[Any, ...]] = {}

    def read(self, frame: bytes) -> ToTracker:
        """The message of a client or a server in a frame.

        Raises `ProtocolError`: it is not JSON; `BadMessage`: as `rpcsys.wire.tracker.parse_to_tracker`.
        """
        if len(frame) > MAX_REMEMBERED_BYTES:
            return self._parse(frame)
        message = self._repeated.get(frame)
        if message is not None:
            return message
        changes = (_ID if frame.startswith(b"{") else _RANDOM).search(frame)
        if changes is not None:
            known = self._alike.get((frame[: changes.start(1)], frame[changes.end(1) :]))
            if type(known) is tuple:
                return Request(int(changes[1]), *known)
            if type(known) is Put:
                return Put(known.key, known.port, known.match_key + changes[1].decode(), known.address)
        message = self._parse(frame)
        if isinstance(message, _REPEATED) or message == _ALIVE:
            _remember(self._repeated, frame, message)
        elif changes is not None:
            self._note(frame[: changes.start(1)], changes[1], frame[changes.end(1) :], message)
        return message

    def _note(self, head: bytes, part: bytes, tail: bytes, message: ToTracker) -> None:
        """Keep an offer or a request, if another id or match key in the part's place changes nothing else."""
        known: Put | tuple[Any, ...]
        other: Put | Request
        if type(message) is Put:
            prefix = message.match_key.removesuffix(part.decode())
            known, text, other = replace(message, match_key=prefix), _OTHER, replace(message, match_key=prefix + _OTHER)
        elif type(message) is Request and message.ticket is None:
            _, *rest = vars(message).values()
            known, text, other = tuple(rest), str(_OTHER_ID), Request(_OTHER_ID, *rest)
        else:
            return
        if self._parse(head + text.encode() + tail) == other:  # the part may be in an address
            _remember(self._alike, (head, tail), known)

    def _parse(self, frame: bytes) -> ToTracker:
        return parse_to_tracker(decode_json(frame), self._known)


def _remember(table: dict[Any, Any], name: object, what: object) -> None:
    if len(table) >= MAX_REMEMBERED:
        table.clear()  # a peer sends ever new frames; those in use come back at once
    table[name] = what
