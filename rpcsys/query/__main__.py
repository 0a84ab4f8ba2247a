"""``query_tracker``, which is also ``rpcsys query`` and ``python -m rpcsys.query``.

Prints the same headings and columns as TVM's tool, as scripts read them. Works with TVM's tracker, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from rpcsys.client import Tracker, connect_tracker
from rpcsys.client.listings import text_summary
from rpcsys.link.address import DEFAULT_TRACKER, each_address, host_and_port, parse_tracker, several, tracker_defaults
from rpcsys.query import reports
from rpcsys.query.terminal import HELP, Decorator, print_json, run_command, say, with_options

NAME = "query_tracker"
WATCH_S = 1.0  # the pause between two summaries of `--watch`

_TRACKER = click.option("--tracker", metavar="HOST:PORT",
                        help="The tracker's address, or all of its replicas (default: RPCSYS_TRACKER).")  # fmt: skip
_HOST = click.option("--host", help="The tracker's host (default: RPCSYS_TRACKER_HOST, TVM_TRACKER_HOST or 127.0.0.1).")
_PORT = click.option("--port", type=click.IntRange(1, 65535),
                     help="The tracker's port (default: RPCSYS_TRACKER_PORT, TVM_TRACKER_PORT or 9190).")  # fmt: skip
_KEY = click.option("--key", help="Only devices of this key.")
_USER = click.option("--user", help="Only this user; the address, where the client sent no name.")
_SINCE = click.option("--since", type=reports.when, help="Not before: 90m, 2h or 7d ago, or 2026-11-20 [12:00].")


def _json(text: str) -> Decorator:
    return click.option("--json", "as_json", is_flag=True, help=text)


@click.group(
    NAME,
    invoke_without_command=True,
    short_help="Print the tracker's servers and queue.",
    help="Print a tracker's servers, and how many are free and how many requests wait, by key.",
    context_settings=HELP,
)
@_TRACKER
@_HOST
@_PORT
@_json("Print the whole summary as one line of JSON.")
@click.option("--watch", is_flag=True, help="Print it every second, until Ctrl-C.")
@click.option("--why", metavar="KEY", help="Print why requests for KEY wait, instead.")
@click.pass_context
def query(
    context: click.Context,
    tracker: str | None,
    host: str | None,
    port: int | None,
    as_json: bool,
    watch: bool,
    why: str | None,
) -> None:
    """Print the summary, once or until Ctrl-C, or why requests wait; a subcommand prints its report instead."""
    context.obj = _Place(tracker, host, port), as_json
    if context.invoked_subcommand is not None:
        return
    with connect_tracker(_address(context.obj[0])) as link:
        if why is not None:
            reports.print_why(link, as_json, why)
            return
        try:
            _look(link, as_json, watch)
            while watch:
                time.sleep(WATCH_S)
                _look(link, as_json, watch)
        except KeyboardInterrupt:
            return  # the normal end of --watch


def _look(tracker: Tracker, as_json: bool, watch: bool) -> None:
    summary = tracker.summary()
    if as_json:
        print_json(summary)
        return
    where = ",".join("{}:{}".format(*each) for each in each_address(tracker.address))
    text = f"Tracker address {where}\n\n{text_summary(summary)}"
    if watch:
        click.clear()  # does nothing without a terminal
    say(text)
    for line in (summary.get("replicas"), summary.get("sites")):
        if line:
            say(f"\n{line}")
    reports.print_boards(summary)
    reports.print_clear(summary)


class _Place(NamedTuple):
    """The tracker's address as it is given: ``--tracker``, ``--host`` and ``--port``; None for what is not."""

    tracker: str | None
    host: str | None
    port: int | None


def _address(*given: _Place) -> tuple[str, int]:
    """The tracker's address: from the options behind the subcommand, those before it, or the environment."""
    for place in given:
        if place.tracker is not None:
            return parse_tracker(place.tracker, DEFAULT_TRACKER[1])
    host = next((place.host for place in given if place.host is not None), None)
    port = next((place.port for place in given if place.port is not None), None)
    default = tracker_defaults()
    if host is not None:
        return several([host_and_port(each, port, default[1]) for each in host.split(",")])
    return default if port is None else several([(each[0], port) for each in each_address(default)])


def _subcommand(name: str, text: str, report: Callable[..., None], *options: Decorator) -> None:
    """Add a subcommand that calls ``report`` with a connection to the tracker and the values of ``options``."""

    @query.command(name, help=text)
    @with_options(_TRACKER, _HOST, _PORT, *options)
    @click.pass_context
    def run(
        context: click.Context, /, tracker: str | None, host: str | None, port: int | None, as_json: bool, **values: Any
    ) -> None:
        before, as_json_before = context.obj
        with connect_tracker(_address(_Place(tracker, host, port), before)) as link:
            report(link, as_json=as_json or as_json_before, **values)


_subcommand(
    "leases", "Print the running leases: user, device, start and limit.", reports.print_leases,
    _KEY, _json("Print a line of JSON for each, with all fields."),
)  # fmt: skip
_subcommand(
    "modules", "Print where deployed modules are served, the least busy server first.", reports.print_modules,
    click.argument("name", required=False, default=""), _json("Print a line of JSON for each."),
)  # fmt: skip
_subcommand(
    "history", "Print leases that are over, the last to end first (needs --state-dir there).", reports.print_history,
    _KEY, _USER, click.option("--server", help="Only this server."), _SINCE,
    click.option("--until", type=reports.when, help="Only before this time, written as for --since."),
    click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most this many leases."),
    click.option("--all", "everything", is_flag=True, help="All leases, instead."),
    _json("Print a line of JSON for each, with all fields."),
)  # fmt: skip
_subcommand(
    "replicas", "Print the tracker's replicas: which leads, and which is behind.", reports.print_replicas,
    _json("Print them as one line of JSON."),
)  # fmt: skip
_subcommand(
    "usage", "Print leases and device time by user and key (needs --state-dir there).", reports.print_usage,
    _KEY, _USER, _SINCE, _json("Print them as one line of JSON."),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, 1 if there is no tracker, 2 for a bad flag."""
    return run_command(query, NAME, arguments)


if __name__ == "__main__":
    sys.exit(main())
