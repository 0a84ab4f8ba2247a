"""The reports of ``query_tracker``: running leases, modules, why requests wait, past leases, and usage."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from rpcsys.client import Tracker
from rpcsys.errors import NotSupported, printable
from rpcsys.query.terminal import Columns, counted, print_json, print_rows, say, span, who
from rpcsys.wire.labels import VERSIONS, shown

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def when(text: str) -> float:
    """Parse ``90m``, ``2h`` or ``7d`` (ago), or ``2026-11-20 [12:00]``, to seconds since 1970.

    Raises click.BadParameter.
    """
    span = _SPAN.fullmatch(text)
    if span is not None:
        return time.time() - float(span[1]) * _UNITS[span[2]]
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        how = "write 90m, 2h or 7d (ago), or 2026-11-20 or '2026-11-20 12:00'"
        raise click.BadParameter(f"{text!r} is no time: {how}") from None


def print_leases(tracker: Tracker, as_json: bool, key: str | None) -> None:
    """Print the running leases, the longest first."""
    summary = tracker.summary()
    if "leases" not in summary:
        raise NotSupported("this is TVM's tracker, which has no leases")
    leases = [lease for lease in summary["leases"] if key in (None, lease["key"])]
    print_rows(sorted(leases, key=lambda lease: -lease["since_s"]), _LEASE, as_json)
    silent = [row["name"] for row in summary["servers"] if not row["limits"]]
    if silent and not as_json:
        are = "is" if len(silent) == 1 else "are"
        click.echo(f"{len(silent)} of the servers {are} TVM's own: sessions there cannot be limited or ended")


def print_boards(summary: Mapping[str, Any]) -> None:
    """Print a table of all servers, those that are gone too, and one of versions; nothing where none is rpcsys's."""
    gone, servers = summary.get("gone", []), summary.get("servers", [])
    if not gone and not any(row["limits"] for row in servers):
        return
    leases: dict[str, list[Any]] = {}
    for lease in summary["leases"]:
        leases.setdefault(lease["server"], []).append(lease)
    rows = [_board(row, leases.get(row["name"], [])) for row in servers]
    rows += [{**row, "state": "gone", "holder": _holders(leases.get(row["name"], []))} for row in gone]
    click.echo("\nBoards")
    print_rows(sorted(rows, key=lambda row: (row["key"], row["name"])), _BOARD)
    _print_slow(servers)
    _print_versions(servers)
    _print_devices(servers)


def print_clear(summary: Mapping[str, Any]) -> None:
    """Print who has come to an open lab without a credential; nothing where nobody has."""
    found = in_clear(summary)
    if found:
        click.echo("\nIn the clear, without a credential")
        print_rows(found, _CLEAR)


def in_clear(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Who has come to an open lab without a credential, each once; a server, or a user at an address."""
    found = {(row["server"], row["user"], row["address"]): row for row in summary.get("clear", [])}
    return [row for _, row in sorted(found.items())]


def clear_name(row: Mapping[str, Any]) -> str:
    """Who has come without a credential, in a word."""
    if row["server"]:
        return f"server {row['server']}"
    return who(row["user"].removesuffix(" (unproven)") or row["address"], row["address"])


def _print_slow(servers: Sequence[Mapping[str, Any]]) -> None:
    """Print the boards that their canaries find slow, and why; nothing where none is."""
    slow = sorted((row for row in servers if row.get("slow")), key=lambda row: str(row["name"]))
    if slow:
        click.echo("\nSlow")
        print_rows(slow, {"name": "name", "key": "key", "why": "slow"})


def _print_versions(servers: Sequence[Mapping[str, Any]]) -> None:
    """Print the versions that servers have, if any: a row for each server, and a column for each label of them."""
    found = [label for label in VERSIONS if any(row["labels"].get(label) for row in servers)]
    if found:
        columns = {label: (lambda row, label=label: row["labels"].get(label) or "-") for label in found}
        click.echo("\nVersions")
        labelled = sorted((row for row in servers if row["labels"]), key=lambda row: str(row["name"]))
        print_rows(labelled, {"name": "name", **columns})


def _print_devices(servers: Sequence[Mapping[str, Any]]) -> None:
    """Print the devices of the servers that have more than their CPU; nothing where none has."""
    rows = [row for row in servers if len(row.get("devices", ())) > 1]
    if rows:
        click.echo("\nDevices")
        columns: dict[str, Any] = {"name": "name", "devices": lambda row: ", ".join(row["devices"])}
        print_rows(sorted(rows, key=lambda row: str(row["name"])), columns)


def _board(row: Mapping[str, Any], leases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A server's row: its holders, and the seconds since the first of them got it, or since its state began."""
    held_s = [lease["since_s"] for lease in leases] if row["state"] in ("ok", "on trial") else []
    return {
        "name": row["name"],
        "key": str(row.get("key", "-")),  # earlier trackers do not send it
        "state": _state(row, len(leases)),
        "holder": _holders(leases),
        "since_s": max(held_s, default=row.get("since_s")),
    }


def _holders(leases: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(who(lease["holder"], lease["address"]) for lease in leases) or "-"


def _state(row: Mapping[str, Any], held: int) -> str:
    if row["state"] == "drained":
        return f"drained {row['reason']}".rstrip()
    if row["state"] != "ok" or (not held and row["free"]):
        return "free" if row["state"] == "ok" else str(row["state"])
    return "preparing" if not held else "busy" if held >= row["slots"] else "partly busy"


def print_modules(tracker: Tracker, as_json: bool, name: str) -> None:
    """Print where deployed modules are served, the least busy server of each first."""
    print_rows(tracker.resolve(name), _MODULE, as_json)


def print_history(tracker: Tracker, as_json: bool, everything: bool, limit: int, **wanted: Any) -> None:
    """Print leases that are over, the last to end first."""
    print_rows(tracker.history(limit=None if everything else limit, **wanted), _PAST_LEASE, as_json)


def print_usage(tracker: Tracker, as_json: bool, **wanted: Any) -> None:
    """Print usage by user and key, the most device time first."""
    rows = tracker.usage(**wanted)
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, _USAGE)


def print_replicas(tracker: Tracker, as_json: bool) -> None:
    """Print the tracker's replicas, the leader first."""
    found = tracker.replicas()
    if as_json:
        print_json(found)
        return
    if not found["replicas"]:
        say("this tracker has no replicas (docs/replicas.md)")
        return
    leader = found["leader"]
    say(f"{leader} leads (term {found['term']})" if leader else "nobody leads at the moment")
    print_rows(sorted(found["replicas"], key=lambda row: (row["address"] != leader, row["address"])), _REPLICA)
    if found["engine"] != "up":
        say(f"the engine: {found['engine']}")


def print_why(tracker: Tracker, as_json: bool, key: str) -> None:
    """Print why requests for ``key`` wait, the holders and the queue; or as JSON."""
    why = tracker.why(key)
    if as_json:
        print_json(why)
        return
    waiting = counted(why["waiting"], "request")
    say(f"{key}: {why['free']} of {counted(why['devices'], 'device')} free, {waiting} waiting")
    for reason in why["reasons"]:
        say(f"  {printable(reason)}")
    queue = [{"number": number, **row} for number, row in enumerate(why["queue"], start=1)]
    for rows, columns in ((why["holders"], _HOLDER), (queue, _QUEUED)):
        if rows:
            click.echo()
            print_rows(rows, columns)


def _span(field: str) -> Callable[[Any], str]:
    return lambda row: span(row[field])


def _user(row: dict[str, Any]) -> str:
    return who(row["user"], row["address"])


def _left(row: dict[str, Any]) -> str:
    return "no limit" if row["until_s"] is None else f"{span(row['until_s'])} more"


def _ended(lease: dict[str, Any]) -> str:
    return dt.datetime.fromtimestamp(lease["ended"]).strftime("%Y-%m-%d %H:%M:%S")  # noqa: DTZ006 (local time)


def _outcome(lease: dict[str, Any]) -> str:
    why = lease["outcome"] != "closed" and (lease.get("fault") or lease["reason"])
    return f"{lease['outcome']} ({why})" if why else lease["outcome"]


def _priority(row: dict[str, Any]) -> str:
    return f"{row['priority']:g}" + (f" +{row['risen']}" if row["risen"] else "")


def _wants(row: dict[str, Any]) -> str:
    several = f"{row['count']} at once" if row["count"] > 1 else ""
    wants = ", ".join(shown(label, value) for label, value in row["labels"].items())
    return " ".join(filter(None, (several, wants))) or "-"


_LEASE: Columns = {
    **{field: field for field in ("lease", "key", "server")},
    "holder": lambda lease: who(lease["holder"], lease["address"]),
    "since": _span("since_s"),
    "at most": _left,
    "state": "state",
}
_BOARD: Columns = {
    **{field: field for field in ("name", "key", "state", "holder")},
    "since": lambda row: "-" if row["since_s"] is None else span(row["since_s"]),
}
_REPLICA: Columns = {
    **{field: field for field in ("address", "role", "version", "behind")},
    "since": lambda row: span(max(0.0, time.time() - row["since"])),
}
_CLEAR: Columns = {
    "who": clear_name,
    "address": "address",
    "when the lab is closed": lambda row: "served, by [tvm] from" if row["allowed"] else "shut out",
}
_MODULE: Columns = {
    "module": "name",
    "version": "version",
    "server": "server",
    "address": lambda row: f"{row['host']}:{row['port']}",
    **{field: field for field in ("workers", "running", "waiting", "clients")},
}
_HELD: Columns = {"held": _span("held_s"), "waited": _span("waited_s")}
_PAST_LEASE: Columns = {
    "ended": _ended, **_HELD, "key": "key", "server": "server", "user": _user, "outcome": _outcome, "lease": "lease",
}  # fmt: skip
_USAGE: Columns = {"user": "user", "key": "key", "leases": "leases", **_HELD, "faults": "faults"}
_HOLDER: Columns = {
    "server": "server",
    "held by": lambda held: _user(held) + (" (inferred)" if held["inferred"] else ""),
    "since": _span("since_s"),
    "at most": _left,
}
_QUEUED: Columns = {
    "next": "number", "user": _user, "priority": _priority, "waited": _span("waited_s"),
    "had lately": _span("spent_s"), "wants": _wants,
}  # fmt: skip
