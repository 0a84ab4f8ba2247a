"""Waiting for devices: the exchange with a tracker from the request to the leases.

Our tracker gives a waiting request a ticket. Sent again with it after a lost connection, the request keeps its place.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from rpcsys.client import answers
from rpcsys.errors import (
    ConnectError,
    NotSupported,
    ProtocolError,
    TrackerLost,
    TrackerUnreachable,
    WaitTimeout,
    one_line,
)
from rpcsys.link.backoff import Backoff
from rpcsys.link.link import Link
from rpcsys.wire import tracker as wire
from rpcsys.wire.checks import match_key as match_key_of
from rpcsys.wire.checks import port as port_number
from rpcsys.wire.checks import shown, text

OnQueued = Callable[[Dict[str, Any]], None]
Reopen = Callable[[float], Link]

REPLY_S = 10.0
#: Seconds to reconnect to a lost tracker; it keeps a ticket's place no longer.
RETURN_S = 60.0
_PAUSE_S = (0.1, 1.0)
_log = logging.getLogger("rpcsys.tracker")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The fields of a request, by the tracker's names."""

    key: Optional[str]
    labels: Dict[str, str]
    count: int
    priority: float
    session_timeout: Optional[float]
    wait_for_key: bool


def wait(
    link: Link, wanted: Wanted, deadline: Optional[float], on_queued: Optional[OnQueued], reopen: Reopen
) -> Tuple[Link, List[Dict[str, Any]]]:
    """The leases, and the link that brought them: ``link``, or a new one if it broke.

    ``deadline`` is a time of the monotonic clock, None for no limit; ``reopen`` connects within the seconds that it is
    given. An error closes the link, and with it the request leaves the queue at once.
    """
    ticket: Optional[str] = None
    place: Dict[str, Any] = {"position": 1, "ahead": 0, "eta_s": None, "holders": []}  # the last that is known

    def take_ticket(event: Dict[str, Any]) -> None:
        nonlocal ticket, place
        if event.get("event") != "queued":
            return  # a newer tracker's
        event = answers.from_tracker(answers.QUEUED, event, "event")
        before, ticket = ticket, event.get("ticket") or ticket
        if not (ticket or "").startswith(before or ""):  # one of several sites grows with each that has the request
            _log.warning("the tracker is back without the place in the queue: the request waits as a new one")
        place = event
        if on_queued is not None:
            on_queued(event)

    def say_why(note: str) -> None:
        if on_queued is not None and place.get("note") != note:
            take_ticket({**place, "event": "queued", "note": note})

    while True:
        try:
            if not link.ours:
                return link, [_from_tvm(link, wanted, _left(deadline))]
            return link, _ask(link, wanted, _left(deadline), ticket, take_ticket)
        except TrackerLost as error:
            link.close()
            if ticket is None and not (link.ours and link.follows):  # of replicas, the next one may not know it
                raise
            _log.warning("%s; looking for it again, to keep the place in the queue", one_line(error))
            link = _return(reopen, deadline, error, say_why)
        except BaseException:
            link.close()
            raise


def _left(deadline: Optional[float]) -> Optional[float]:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _ask(
    link: Link, wanted: Wanted, wait_s: Optional[float], ticket: Optional[str], on_event: OnQueued
) -> List[Dict[str, Any]]:
    final = link.ask(
        "request",
        timeout=None if wait_s is None else wait_s + REPLY_S,
        on_event=on_event,
        wait_timeout=wait_s,
        ticket=ticket,
        **dataclasses.asdict(wanted),
    )
    leases: List[Dict[str, Any]] = answers.from_tracker(answers.LEASES, final.get("leases"), "leases")
    if len(leases) != wanted.count:
        raise ProtocolError(f"the tracker gave {len(leases)} devices, and was asked for {wanted.count}")
    return leases


def _return(reopen: Reopen, deadline: Optional[float], error: TrackerLost, say_why: Callable[[str], None]) -> Link:
    """A new link, as soon as the tracker is back; ``say_why`` gets why it is not. As long as replicas stand by, their
    engine may come back, and with it the place in the queue.
    """
    until = _until(deadline)
    backoff = Backoff(*_PAUSE_S)
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise error
        try:
            return reopen(max(0.1, min(left, REPLY_S)))
        except ConnectError as problem:
            if isinstance(problem, TrackerUnreachable) and problem.stands_by:
                until = _until(deadline)
            say_why(one_line(problem))
            time.sleep(backoff.pause_within(until - time.monotonic()) or 0.0)


def _until(deadline: Optional[float]) -> float:
    until = time.monotonic() + RETURN_S
    return until if deadline is None else min(until, deadline)


def _from_tvm(link: Link, wanted: Wanted, wait_s: Optional[float]) -> Dict[str, Any]:
    """A lease from TVM's tracker, which keeps requests of lost connections in its queue: nothing is retried."""
    if wanted.key is None or wanted.labels or wanted.count > 1:
        raise NotSupported("this is TVM's tracker: it has no labels, and one device for each request of a key")
    try:
        reply = link.command([wire.REQUEST, wanted.key, "", wanted.priority], timeout=wait_s)
    except TimeoutError:
        raise WaitTimeout(f"no device of {wanted.key!r} became free in {wait_s or 0:g} s") from None
    try:
        code, (host, port, match_key) = reply
        if code != 0:
            raise ValueError
        place = {"host": text(host, "host"), "port": port_number(port, "port")}
        return {"key": wanted.key, **place, "matchkey": match_key_of(match_key, "match key")}
    except (TypeError, ValueError, ProtocolError):
        raise ProtocolError(f"the tracker's answer to a request makes no sense: {shown(reply)}") from None


def give_back(link: Link, leases: List[Dict[str, Any]], failed: Dict[str, Any], problem: str) -> None:
    """Release leases without sessions. The ``problem`` with that of ``failed`` counts as its server's failure."""
    if not link.ours:
        return
    try:
        for lease in leases:
            link.ask("release", timeout=REPLY_S, lease=lease["lease"], problem=problem if lease is failed else "")
    except TrackerLost:
        if not link.follows:  # else the next request notices, and goes where another replica leads
            raise
