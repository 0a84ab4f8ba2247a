"""A lease's page: who, where, since when and until when; and when it is over, how it ended and what was cleaned up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rpcsys.tracker.transitions import INFERRED, OURS, SILENT
from rpcsys.tracker.views.board_page import GROUP
from rpcsys.tracker.views.fragments import Fragment
from rpcsys.tracker.views.lab_page import who

if TYPE_CHECKING:
    from rpcsys.tracker.entities import LeaseRecord
    from rpcsys.tracker.records import Records
    from rpcsys.tracker.views.past import Past

_HOW = {
    OURS: "",
    SILENT: "one of TVM's servers has it, which reports nothing: it ends with that server's next offer",
    INFERRED: "one of several of TVM's servers has it: which of their leases ends is a guess",
}


def lease_fragments(records: Records, name: str, past: Past) -> Iterator[Fragment]:
    """A lease's page; nothing if it does not run and the history does not know it."""
    lease = records.leases.get(name)
    if lease is not None:
        yield Fragment(GROUP, "state", "lease_state.html", _running(lease))
    elif past.leases:
        over = past.leases[0]
        yield Fragment(GROUP, "state", "lease_state.html", _over(over))
        yield Fragment(GROUP, "cleaned", "lease_cleaned.html", {"cleaned": _cleaned(over["cleaned"])})


def _running(lease: LeaseRecord) -> dict[str, Any]:
    return {
        "name": lease.lease,
        "state": lease.state.value if lease.how == OURS else lease.how,
        "key": lease.key,
        "server": lease.server_name,
        "who": who(lease.user, lease.address),
        "since": lease.since,
        "begun": lease.started_at,
        "until": lease.until,
        "limit_s": lease.limit_s,
        "how": _HOW[lease.how],
        "over": None,
    }


def _over(lease: Any) -> dict[str, Any]:
    """A lease of the history."""
    return {
        "name": lease["lease"],
        "state": "over",
        "key": lease["key"],
        "server": lease["server"],
        "who": who(lease["user"], lease["address"]),
        "since": lease["since"],
        "begun": lease["begun"],
        "until": None,
        "limit_s": lease["limit_s"],
        "how": _HOW.get(lease["how"], ""),
        "over": {name: lease[name] for name in ("ended", "held_s", "waited_s", "outcome", "reason", "fault")},
    }


def _cleaned(cleaned: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """What the server removed, by kind."""
    return [
        (str(kind), [str(name) for name in found] if isinstance(found, list) else [str(found)])
        for kind, found in cleaned.items()
    ]
