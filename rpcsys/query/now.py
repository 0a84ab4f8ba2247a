"""``query_tracker leases`` and ``query_tracker --why``: who has what now, and why others wait."""

from __future__ import annotations

from typing import Any

import click

from rpcsys.client import Tracker
from rpcsys.errors import NotSupported, printable
from rpcsys.query.table import print_json, print_table, say, span, who


def print_leases(tracker: Tracker, as_json: bool, key: str | None) -> None:
    """Print the leases that are out, the longest first: a table, or a line of JSON for each."""
    summary = tracker.summary()
    if "leases" not in summary:
        raise NotSupported("this is TVM's tracker, which does not know who has a device")
    leases = [lease for lease in summary["leases"] if key in (None, lease["key"])]
    leases.sort(key=lambda lease: -lease["since_s"])
    if as_json:
        for lease in leases:
            print_json(lease)
        return
    head = ("lease", "key", "server", "holder", "since", "at most", "state")
    print_table(
        head,
        [
            (
                lease["lease"],
                lease["key"],
                lease["server"],
                who(lease["holder"], lease["address"]),
                span(lease["since_s"]),
                _left(lease),
                lease["state"],
            )
            for lease in leases
        ],
    )
    silent = [row["name"] for row in summary["servers"] if not row["limits"]]
    if silent:
        click.echo(f"{len(silent)} of the servers are TVM's own: their sessions cannot be limited or ended")


def _left(lease: dict[str, Any]) -> str:
    until_s = lease["until_s"]
    return "no limit" if until_s is None else f"{span(until_s)} more"


def print_modules(tracker: Tracker, as_json: bool, name: str) -> None:
    """Print where deployed modules are served, the least busy place of each first: a table, or a line of JSON for each."""
    rows = tracker.resolve(name)
    if as_json:
        for row in rows:
            print_json(row)
        return
    head = ("module", "version", "server", "address", "workers", "running", "waiting", "clients")
    print_table(
        head,
        [
            (
                row["name"],
                row["version"],
                row["server"],
                f"{row['host']}:{row['port']}",
                *(str(row[field]) for field in head[4:]),
            )
            for row in rows
        ],
    )


def print_why(tracker: Tracker, as_json: bool, key: str) -> None:
    """Print why a request for ``key`` has to wait: what is taken, by whom, and who is next; or all of it as JSON."""
    why = tracker.why(key)
    if as_json:
        print_json(why)
        return
    say(f"{key}: {why['free']} of {why['devices']} devices free, {why['waiting']} requests waiting")
    for reason in why["reasons"]:
        say(f"  {printable(reason)}")
    if why["holders"]:
        click.echo()
        print_table(
            ("server", "held by", "since", "at most"),
            [
                (
                    held["server"],
                    who(held["user"], held["address"]) + (" (inferred)" if held["inferred"] else ""),
                    span(held["since_s"]),
                    _left(held),
                )
                for held in why["holders"]
            ],
        )
    if why["queue"]:
        click.echo()
        print_table(
            ("next", "user", "priority", "waited", "had lately", "wants"),
            [_waiting_row(number, row) for number, row in enumerate(why["queue"], start=1)],
        )
    aside = [row for row in why["servers"] if row["state"] != "ok"]
    if aside:
        click.echo()
        print_table(("server", "state", "because", "again in"), [_aside_row(row) for row in aside])


def _waiting_row(number: int, row: dict[str, Any]) -> tuple[str, ...]:
    risen = f" +{row['risen']}" if row["risen"] else ""
    wants = ", ".join(f"{label}={value}" for label, value in row["labels"].items())
    several = f"{row['count']} at once" if row["count"] > 1 else ""
    return (
        str(number),
        who(row["user"], row["address"]),
        f"{row['priority']:g}{risen}",
        span(row["waited_s"]),
        span(row["spent_s"]),
        " ".join(filter(None, (several, wants))) or "-",
    )


def _aside_row(row: dict[str, Any]) -> tuple[str, ...]:
    again = "-" if row["until_s"] is None else span(row["until_s"])
    return (row["server"], row["state"], row["reason"] or "-", again)
