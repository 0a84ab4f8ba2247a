"""What happened, in words for the log.

A busy tracker writes two lines for each lease. Most of what they say was said before, of other leases: it is
remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any

from rpcsys.logs import number, pairs

QUIET = frozenset(("epoch", "arrival", "since"))
"""Fields that tell people nothing."""

_REMEMBERED = 4096


class Lease:
    """Words for records of one kind, all about leases: their seconds are their own, ``again`` comes again and again."""

    def __init__(self, seconds: str, *again: str) -> None:
        self._seconds = seconds
        self._take = itemgetter(*again)
        self._said = lru_cache(_REMEMBERED)(lambda *values: pairs(dict(zip(again, values, strict=True))))

    def __call__(self, fields: Mapping[str, Any]) -> str:
        lease, said = fields["lease"], self._said(*self._take(fields))
        plain = lease.replace("-", "").isalnum()  # as ours are; a server may come back with another's
        name = f"lease={lease}" if plain else pairs({"lease": lease})
        text = f"{name} {said} {self._seconds}={number(fields[self._seconds])}"
        cleaned = fields.get("cleaned")
        return f"{text} {pairs({'cleaned': cleaned})}" if cleaned else text


_LEASES = {
    "granted": Lease("waited_s", "key", "server", "user", "address", "limit_s", "priority", "how"),
    "over": Lease("held_s", "key", "server", "user", "address", "outcome", "reason", "fault"),
}


def words(kind: str, fields: Mapping[str, Any]) -> str:
    """A record's fields in words, see `rpcsys.logs`."""
    lease = _LEASES.get(kind)
    return pairs(fields, QUIET) if lease is None else lease(fields)
