"""Errors about unknown names, with the nearest known ones."""

from __future__ import annotations

import difflib
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpcsys.tracker.labels import Wants
    from rpcsys.tracker.records import Records

NAMES_SHOWN = 10
_COMPARED = 200  # names that a misspelt one is compared with: each blocks the loop for microseconds


def unknown(records: Records, wants: Wants) -> str:
    """One line for a person who requested what no server has."""
    wait = "Check the {}, or wait for it with wait_for_key=True"
    queue = records.queues.get(wants.key)
    if wants.labels and (not wants.key or (queue is not None and queue.servers)):
        near = _near_values(records, wants)
        has = "; there are " + near if near else ""
        return f"no server is {wants}{has}. " + wait.format("labels")
    key = wants.key
    some = islice(records.queues.items(), 20 * _COMPARED)
    served = [name for name, queue in some if queue.servers and name][:_COMPARED]
    if not served:
        start = f"start one with `python -m rpcsys.server --key {key} --tracker …`"
        return f"no server offers {key!r}, nor any other key: {start}"
    near_keys = difflib.get_close_matches(key, served, n=3) or sorted(served)[:5]
    return f"no server offers {key!r}; there are {', '.join(near_keys)}. " + wait.format("key")


def _near_values(records: Records, wants: Wants) -> str:
    missing = [pair for pair in sorted(wants.exact) if pair not in records.by_fact and pair[0] != "key"]
    found = []
    for label, value in missing:
        values = [other for name, other in islice(records.by_fact, 20 * _COMPARED) if name == label]
        near = difflib.get_close_matches(value, values[:_COMPARED], n=3) or sorted(values)[:3]
        found += [f"{label}={other}" for other in near]
    return ", ".join(found)


def unknown_server(records: Records, name: str) -> str:
    """One line for a person who named an unknown server."""
    names = list(islice(records.server_names, 20 * _COMPARED))
    near = difflib.get_close_matches(name, names[:_COMPARED], n=3) or sorted(names)[:3]
    there = f"; there are {', '.join(near)}" if near else ""
    return f"there is no server {name!r}{there}: see the names in query_tracker --json"


def unknown_module(records: Records, name: str) -> str:
    """One line for a person who named an unknown module."""
    names = nsmallest(_COMPARED, records.modules)
    if not names:
        return f"no server has a deployed module {name!r}, nor any other; type: rpcsys deploy FILE --to HOST:PORT"
    near = difflib.get_close_matches(name, names, 3, 0.5) or names[:NAMES_SHOWN]
    return f"no server has a deployed module {name!r}; there is {', '.join(near)} (see query_tracker modules)"
