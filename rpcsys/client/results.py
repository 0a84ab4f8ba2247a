"""The results of measurements that a tracker keeps for all. Not for boards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from rpcsys.client.answers import from_tracker
from rpcsys.client.waiting import REPLY_S
from rpcsys.errors import NotSupported
from rpcsys.link.link import Link
from rpcsys.wire import results


def find(link: Link, identities: Iterable[str]) -> dict[str, list[float]]:
    """As `rpcsys.client.tracker.Tracker.find_results`."""
    _check_keeps(link)
    left = iter(dict.fromkeys(identities))
    kept: dict[str, list[float]] = {}
    while asked := list(islice(left, results.MAX_RESULTS)):
        answer = link.ask("find_results", timeout=REPLY_S, identities=asked)
        found = from_tracker(results.found, answer.get("found"), "found")
        kept.update({each: found[each] for each in asked if each in found})
    return kept


def keep(link: Link, kept: Mapping[str, list[float]]) -> None:
    """As `rpcsys.client.tracker.Tracker.keep_results`."""
    _check_keeps(link)
    left = iter(kept.items())
    while some := dict(islice(left, results.MAX_RESULTS)):
        link.ask("keep_results", timeout=REPLY_S, results=some)


def _check_keeps(link: Link) -> None:
    if results.RESULTS not in (link.tracker.get("capabilities") or ()):
        raise NotSupported("the tracker is of a version that keeps no results: update rpcsys there")
