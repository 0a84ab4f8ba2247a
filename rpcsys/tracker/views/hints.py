"""Errors about unknown names, with the nearest known ones."""

from __future__ import annotations

import difflib
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from rpcsys.errors import there_are
from rpcsys.tracker.labels import ANY, KEY
from rpcsys.tracker.views.obstacles import last_left

if TYPE_CHECKING:
    from rpcsys.tracker.labels import Wants
    from rpcsys.tracker.records import Records

NAMES_SHOWN = 10
_COMPARED = 200  # names that a misspelt one is compared with: each blocks the loop for microseconds


def unknown(records: Records, wants: Wants) -> str:
    """One line for a person who requested what no server has."""
    wait = "Check the {}, or wait for it with wait_for_key=True"
    queue, left = records.queues.get(wants.key), last_left(records, records.now, wants)
    if wants.labels and (not wants.key or (queue is not None and queue.servers)):
        return f"no server is {wants}{left}{_near_values(records, wants)}. " + wait.format("labels")
    key = wants.key
    some = islice(records.queues.items(), 20 * _COMPARED)
    served = [name for name, queue in some if queue.servers and name][:_COMPARED]
    if not served:
        start = f"start one with `python -m rpcsys.server --key {key} --tracker …`"
        return f"no server offers {key!r}{f'{left};' if left else ', nor any other key:'} {start}"
    near_keys = difflib.get_close_matches(key, served, n=3) or sorted(served)[:5]
    return f"no server offers {key!r}{left}; {there_are(near_keys)}. " + wait.format("key")


def _near_values(records: Records, wants: Wants) -> str:
    """Values that servers have for the wanted labels, and the labels that none of them has."""
    missing = [pair for pair in sorted(wants.exact) if pair not in records.by_fact and pair[0] not in (KEY, ANY[0])]
    found, lacking = [], set()
    for label, value in missing:
        values = [other for name, other in islice(records.by_fact, 20 * _COMPARED) if name == label]
        near = difflib.get_close_matches(value, values[:_COMPARED], n=3) or sorted(values)[:3]
        found += [f"{label}={other}" for other in near]
        lacking |= set() if near else {label}
    for label in sorted({each.label for each in wants.compared}):
        values = _values(records, wants.key, label)
        found += [f"{label}={other}" for other in values]
        lacking |= set() if values else {label}
    there = f"; {there_are(found)}" if found else ""
    return there + (f"; no server has the label {', '.join(sorted(lacking))}" if lacking else "")


def _values(records: Records, key: str, label: str) -> list[str]:
    """Some values that the servers of a key ("": any key) have for a label."""
    some = islice(records.by_fact.get((KEY, key) if key else ANY, ()), 20 * _COMPARED)
    servers = (records.peers[conn].server for conn in some)
    return sorted({server.labels[label] for server in servers if server is not None and label in server.labels})[-3:]


def unknown_server(records: Records, name: str) -> str:
    """One line for a person who named an unknown server."""
    names = list(islice(records.server_names, 20 * _COMPARED))
    near = difflib.get_close_matches(name, names[:_COMPARED], n=3) or sorted(names)[:3]
    there = f"; {there_are(near)}" if near else ""
    return f"there is no server {name!r}{there}: query_tracker shows the names"


def unknown_module(records: Records, name: str) -> str:
    """One line for a person who named an unknown module."""
    if name in records.modules:
        return f"no server serves {name!r} now: it is being loaded, or its servers are drained (query_tracker)"
    names = nsmallest(_COMPARED, records.modules)
    if not names:
        return f"no server has a deployed module {name!r}, nor any other; type: rpcsys deploy FILE --to NAME"
    near = difflib.get_close_matches(name, names, 3, 0.5) or names[:NAMES_SHOWN]
    return f"no server has a deployed module {name!r}; {there_are(near)} (see query_tracker modules)"
