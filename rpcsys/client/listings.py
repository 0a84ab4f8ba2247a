"""A tracker's long answers: summaries, why a request waits, history and usage. Checked as in `answers`; not for boards.

As text, a summary has the layout of TVM's query tool, which users' scripts parse.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, cast

from rpcsys.client import waiting
from rpcsys.client.answers import count, from_tracker, pair, span
from rpcsys.errors import ProtocolError, TrackerError, TrackerLost, printable
from rpcsys.link.link import Link
from rpcsys.wire import checks, page_body, tracker
from rpcsys.wire.checks import flag, optional, record, rows, sentence, table
from rpcsys.wire.keys import MAX_KEY

if TYPE_CHECKING:
    from rpcsys.client.rows import PastLease, Replicas, TrackerSummary, UsageRow

#: Seconds for a page: the tracker may search its history.
REPLY_S = 30.0
#: The most bytes and seconds of an answer in pages: 100,000 leases or servers. Parsed, it takes ten times the bytes.
MAX_BYTES = 64 << 20
MAX_S = 300.0
#: Leases in a page; the tracker sends fewer where they do not fit a frame.
_PAGE = 1000
_RULE = "-" * 30

some = optional(span)
_state = {"state": sentence, "reason": sentence, "until_s": some}
_held = {"since_s": span, "until_s": some}

#: The part that TVM's tracker sends, too.
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
    leases=rows(record(**dict.fromkeys(("lease", "key", "server", "holder", "address", "state"), sentence), **_held)),
)
#: What earlier trackers do not send.
LATER = checks.partial(
    servers=rows(checks.partial(since_s=span)),
    gone=rows(record(name=sentence, key=sentence, reason=sentence, since_s=span)),
    clear=rows(record(address=sentence, user=sentence, server=sentence, allowed=flag)),
    replicas=sentence,
    sites=sentence,
)
_REPLICA = dict.fromkeys(("http_port", "through", "behind"), count)
REPLICAS = record(
    leader=optional(sentence),
    term=count,
    engine=sentence,
    replicas=rows(record(address=sentence, version=sentence, role=sentence, since=checks.seconds, **_REPLICA)),
)
WHY = record(
    free=count,
    devices=count,
    waiting=count,
    reasons=rows(sentence),
    holders=rows(record(server=sentence, user=sentence, address=sentence, inferred=flag, **_held)),
    queue=rows(
        record(
            **dict.fromkeys(("user", "address"), sentence),
            **dict.fromkeys(("risen", "count"), count),
            **dict.fromkeys(("waited_s", "spent_s"), span),
            priority=checks.number,
            labels=table(sentence),
        )
    ),
    servers=rows(record(server=sentence, **_state)),
)
PAST = rows(
    record(
        **dict.fromkeys(("lease", "key", "server", "user", "address", "outcome", "reason"), sentence),
        **dict.fromkeys(("held_s", "waited_s"), span),
        ended=checks.seconds,
    )
)
USAGE = rows(record(user=sentence, key=sentence, leases=count, faults=count, held_s=span, waited_s=span))


class Pages:
    """The pages of one answer: requested one after another, within `MAX_BYTES` and `MAX_S`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._bytes = link.received + MAX_BYTES
        self._until = time.monotonic() + MAX_S

    def ask(self, op: str, **fields: Any) -> Dict[str, Any]:
        """The next page. Raises `ProtocolError` beyond these limits, and errors as `Link.ask`."""
        left = self._until - time.monotonic()
        if left <= 0 or self._link.received > self._bytes:
            raise ProtocolError(
                f"the tracker's answer to {op} is longer than {MAX_BYTES >> 20} MB, or takes longer than {MAX_S:g} s: "
                "ask for less (--since, --limit)"
            )
        return self._link.ask(op, timeout=min(REPLY_S, left), **fields)


def summary(link: Link) -> TrackerSummary:
    """The summary of a tracker, ours or TVM's."""
    if link.ours:
        return whole_summary(link)
    try:
        reply = link.command([tracker.SUMMARY], timeout=waiting.REPLY_S)
    except TimeoutError as error:
        raise TrackerLost(str(error)) from None
    found = reply[1] if type(reply) is list and len(reply) == 2 and reply[0] == tracker.SUCCESS else reply
    checked: TrackerSummary = from_tracker(TVM_SUMMARY, found, "summary")
    return checked


def whole_summary(link: Link) -> TrackerSummary:
    """The summary of a tracker of ours, from all its pages."""
    pages = Pages(link)
    whole: Dict[str, Any] = {}
    after: Optional[List[int]] = None
    while True:
        answer = pages.ask("summary", after=after)
        found = from_tracker(LATER, from_tracker(SUMMARY, answer.get("summary"), "summary"), "summary")
        for part, more in found.items():
            there: Any = whole.get(part)
            if type(there) is dict and type(more) is dict:
                there.update(more)
            elif type(there) is list and type(more) is list:
                there += more
            else:  # values that cannot be joined are the last page's
                whole[part] = more
        following = from_tracker(optional(pair(count)), answer.get("next"), "next")
        if following is None:
            return cast("TrackerSummary", whole)
        if not (any(found.values()) and (after is None or following > after)):
            raise ProtocolError("the tracker's summary does not go on: its pages repeat themselves")
        after = following


def leases(link: Link, *, limit: Optional[int] = 100, page: int = _PAGE, **wanted: Any) -> Iterator[PastLease]:
    """Ended leases, ``page`` at a time; as `rpcsys.client.tracker.Tracker.history`."""
    _need_ours(link)
    pages = Pages(link)
    before: Optional[int] = None
    while limit is None or limit > 0:
        most = page if limit is None else min(page, limit)
        answer = pages.ask("history", limit=most, before=before, **wanted)
        found = from_tracker(PAST, answer.get("leases"), "leases")
        following = from_tracker(optional(count), answer.get("before"), "before")
        if len(found) > most or (following is not None and not (found and (before is None or following < before))):
            raise ProtocolError("the tracker's history does not go on: its pages repeat themselves")
        yield from found
        if following is None:
            return
        before = following
        if limit is not None:
            limit -= len(found)


def usage(link: Link, **wanted: Any) -> List[UsageRow]:
    """Rows by user and key; as `rpcsys.client.tracker.Tracker.usage`."""
    _need_ours(link)
    answer = link.ask("usage", timeout=REPLY_S, **wanted)
    return from_tracker(USAGE, answer.get("usage"), "usage")  # type: ignore[no-any-return]


def replicas(link: Link) -> Replicas:
    """The tracker's replicas; as `rpcsys.client.tracker.Tracker.replicas`."""
    try:
        answer = link.ask("page", path="/api/replicas", timeout=REPLY_S) if link.ours else {}
    except TrackerError as error:
        if type(error) is not TrackerError:  # this client may not ask
            raise
        answer = {}  # the page is unknown: the tracker has none, or is older than they are
    if not answer:
        return {"leader": None, "term": 0, "engine": "", "replicas": []}
    body = from_tracker(sentence, answer.get("body"), "body")
    found = from_tracker(REPLICAS, tracker.decode_json(page_body.unpack(body)), "replicas")
    return cast("Replicas", found)


def _need_ours(link: Link) -> None:
    if not link.ours:
        raise TrackerError("TVM's tracker keeps no history: this needs rpcsys's, started with --state-dir DIR")


# ------------------------------------------------------------------ a summary as text


def text_summary(summary: Mapping[str, Any]) -> str:
    """The server list and the queue status of a tracker's summary (``queue_info`` and ``server_info``).

    Where TVM's figures are wrong, ours differ: a key is everything behind ``server:``, colons included, and servers
    behind one of TVM's proxies are counted under their keys. Raises `ProtocolError` for a summary of another form.
    """
    try:
        lines = _server_list(summary["server_info"]) + _queue_status(summary)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ProtocolError("the tracker's summary is not of the form that trackers send") from None
    return "\n".join(lines) + "\n"


def _server_list(servers: List[Dict[str, Any]]) -> List[str]:
    rows = [
        "{:21s}    {}".format(printable(":".join(map(str, server["addr"]))), printable(server["key"]))
        for server in sorted(servers, key=lambda server: str(server["key"]))
    ]
    return ["Server List", _RULE, "server-address           key", _RULE, *rows, _RULE, ""]


def _queue_status(summary: Mapping[str, Any]) -> List[str]:
    queues = summary["queue_info"]
    totals = collections.Counter(key for server in summary["server_info"] for key in _keys(server["key"]))
    width = min(MAX_KEY, max((len(printable(key)) for key in queues), default=0))
    title = "{:<{}s}   total  free  pending".format("key", width)
    rule = "-" * (len(title) + 1)  # TVM counts the end of the line
    rows = []
    for key in sorted(queues):
        free, pending = queues[key]["free"], queues[key]["pending"]
        if totals[key] or pending:
            name = printable(key)
            rows.append("{:<{}}   {:<5d}  {:<4d}  {:<7d}".format(name, width, totals[key], free, pending))
    return ["Queue Status", rule, title, rule, *rows, rule]


def _keys(name: str) -> List[str]:
    """The device keys behind a server's name: ``server:KEY``, or ``server:proxy[KEY1,KEY2]``."""
    key = name.removeprefix("server:")
    if key.startswith("proxy[") and key.endswith("]"):
        return [inner for inner in key[len("proxy[") : -1].split(",") if inner]
    return [key]
