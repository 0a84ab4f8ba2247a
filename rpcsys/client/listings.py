"""A tracker's long answers, for a desk: summaries, why somebody waits, history and usage. Checked as `rpcsys.client.answers`.

An answer that comes in pages goes on with each of them, and is bounded in bytes and in time.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Iterator, List, Optional

from rpcsys.client.answers import checked, count, some, span
from rpcsys.errors import ProtocolError
from rpcsys.link import Link
from rpcsys.wire import checks
from rpcsys.wire.checks import flag, optional, record, rows, sentence, table

REPLY_S = 30.0
"""A tracker may have to search its history for a page."""

MAX_BYTES = 64 << 20
MAX_S = 300.0
"""Of an answer in pages: 100,000 leases or servers. It takes some ten times as many bytes in Python."""


_state = {"state": sentence, "reason": sentence, "until_s": some}
_held = {"since_s": span, "until_s": some}

#: What TVM's tracker says, too.
QUEUES = {
    "queue_info": table(record(free=count, pending=count)),
    "server_info": rows(record(key=sentence, addr=rows(checks.anything))),
}
TVM_SUMMARY = record(**QUEUES)
SUMMARY = record(
    **QUEUES,
    servers=rows(
        record(name=sentence, limits=flag, labels=table(sentence), slots=count, running=count, free=count, **_state)
    ),
    leases=rows(
        record(
            lease=sentence, key=sentence, server=sentence, holder=sentence, address=sentence, state=sentence, **_held
        )
    ),
)
WHY = record(
    free=count,
    devices=count,
    waiting=count,
    reasons=rows(sentence),
    holders=rows(record(server=sentence, user=sentence, address=sentence, inferred=flag, **_held)),
    queue=rows(
        record(
            user=sentence,
            address=sentence,
            priority=checks.number,
            risen=count,
            waited_s=span,
            spent_s=span,
            labels=table(sentence),
            count=count,
        )
    ),
    servers=rows(record(server=sentence, **_state)),
)
PAST = rows(
    record(
        lease=sentence,
        key=sentence,
        server=sentence,
        user=sentence,
        address=sentence,
        outcome=sentence,
        reason=sentence,
        ended=checks.seconds,
        held_s=span,
        waited_s=span,
    )
)
USAGE = rows(record(user=sentence, key=sentence, leases=count, faults=count, held_s=span, waited_s=span))


class Pages:
    """The pages of one answer: asked for one after another, within `MAX_BYTES` and `MAX_S`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._bytes = link.received + MAX_BYTES
        self._until = time.monotonic() + MAX_S

    def ask(self, op: str, **fields: Any) -> Dict[str, Any]:
        """The next page. Raises `ProtocolError` where there have been too many, and as `Link.ask`."""
        left = self._until - time.monotonic()
        if left <= 0 or self._link.received > self._bytes:
            raise ProtocolError(
                f"the tracker's answer to {op} is longer than {MAX_BYTES >> 20} MB, or takes longer than {MAX_S:g} s: "
                "ask for less (--since, --limit)"
            )
        return self._link.ask(op, timeout=min(REPLY_S, left), **fields)


def whole_summary(link: Link) -> Dict[str, Any]:
    """A summary of ours, from as many pages as it has."""
    pages = Pages(link)
    whole: Dict[str, Any] = {}
    after: Optional[List[int]] = None
    while True:
        answer = pages.ask("summary", after=after)
        found = checked(SUMMARY, answer, "summary")
        for part, more in found.items():
            _join(whole, part, more)
        following = checked(optional(_place), answer, "next")
        if following is None:
            return whole
        if not (any(found.values()) and (after is None or following > after)):
            raise ProtocolError("the tracker's summary does not go on: its pages repeat themselves")
        after = following


def _place(value: Any, name: str) -> List[int]:
    if type(value) is not list or len(value) != 2:
        raise checks.wrong(name, "a place", value)
    return [count(item, name) for item in value]


def _join(whole: Dict[str, Any], part: str, more: Any) -> None:
    """Add a page's part to what is there; one that this package does not know is the last page's, if it cannot be joined."""
    there = whole.get(part)
    if type(there) is dict and type(more) is dict:
        there.update(more)
    elif type(there) is list and type(more) is list:
        there += more
    else:
        whole[part] = more


def past_leases(link: Link, limit: Optional[int], page: int, **wanted: Any) -> Iterator[Dict[str, Any]]:
    """Leases that are over, ``limit`` of them (None: all), ``page`` at a time."""
    pages = Pages(link)
    before: Optional[int] = None
    left = limit
    while left is None or left > 0:
        most = page if left is None else min(page, left)
        answer = pages.ask("history", limit=most, before=before, **wanted)
        found = checked(PAST, answer, "leases")
        following = checked(optional(count), answer, "before")
        if len(found) > most or (following is not None and not (found and (before is None or following < before))):
            raise ProtocolError("the tracker's history does not go on: its pages repeat themselves")
        yield from found
        if following is None:
            return
        before = following
        if left is not None:
            left -= len(found)
