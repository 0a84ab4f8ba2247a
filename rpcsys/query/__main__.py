"""``query_tracker``, which is also ``python -m rpcsys.query``.

Prints what TVM's tool of that purpose prints, under the same headings, since people's scripts read it.
Works against TVM's tracker as well as ours.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from rpcsys.client import connect_tracker
from rpcsys.client.summary import text_summary
from rpcsys.errors import RpcsysError, UsageError, one_line
from rpcsys.link import tracker_defaults
from rpcsys.query.history import print_history, print_usage, when
from rpcsys.query.now import print_leases, print_modules, print_why
from rpcsys.query.table import escape_what_the_terminal_lacks, print_json, say

NAME = "query_tracker"
EVERY_S = 1.0
"""How long `--watch` waits between two looks."""


_HOST = click.option("--host", help="The tracker's host (default: RPCSYS_TRACKER_HOST, TVM_TRACKER_HOST or 127.0.0.1).")
_PORT = click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="The tracker's port (default: RPCSYS_TRACKER_PORT, TVM_TRACKER_PORT or 9190).",
)
_KEY = click.option("--key", help="Only devices of this key.")
_USER = click.option("--user", help="Only this user; who gave no name goes by the address.")
_SINCE = click.option("--since", type=when, help="Not before: 90m, 2h or 7d ago, or 2026-11-20 [12:00].")


@click.group(
    NAME,
    invoke_without_command=True,
    help="Print a tracker's servers, and how many are free and how many requests wait, by key.",
)
@_HOST
@_PORT
@click.option("--json", "as_json", is_flag=True, help="Print the whole summary as one line of JSON.")
@click.option("--watch", is_flag=True, help="Look again every second, until Ctrl-C.")
@click.option("--why", metavar="KEY", help="Say why requests for KEY wait, instead.")
@click.pass_context
def command(
    context: click.Context, host: str | None, port: int | None, as_json: bool, watch: bool, why: str | None
) -> None:
    """Look once, or for as long as somebody watches."""
    context.obj = (host, port)
    if context.invoked_subcommand is not None:
        return
    address = _address(context, None, None)
    if why is None:
        _look(address, as_json, watch)
        return
    with connect_tracker(address) as tracker:
        print_why(tracker, as_json, why)


@command.command("leases", help="Print the leases that are out: who has what, since when, until when.")
@_HOST
@_PORT
@_KEY
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each, with all that is known.")
@click.pass_context
def leases(context: click.Context, /, host: str | None, port: int | None, key: str | None, as_json: bool) -> None:
    """Who has what."""
    with connect_tracker(_address(context, host, port)) as tracker:
        print_leases(tracker, as_json, key)


@command.command("modules", help="Print where deployed modules are served, the least busy place first.")
@_HOST
@_PORT
@click.argument("name", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
@click.pass_context
def modules(context: click.Context, /, host: str | None, port: int | None, name: str, as_json: bool) -> None:
    """What many clients share."""
    with connect_tracker(_address(context, host, port)) as tracker:
        print_modules(tracker, as_json, name)


@command.command("history", help="Print leases that are over, the last to end first (needs --state-dir there).")
@_HOST
@_PORT
@_KEY
@_USER
@click.option("--server", help="Only this server.")
@_SINCE
@click.option("--until", type=when, help="Before: as --since.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@click.option("--all", "everything", is_flag=True, help="All of them, instead.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each, with all that is known.")
@click.pass_context
def history(
    context: click.Context, /, host: str | None, port: int | None, as_json: bool, everything: bool, **wanted: Any
) -> None:
    """What became of leases."""
    if everything:
        wanted["limit"] = None
    with connect_tracker(_address(context, host, port)) as tracker:
        print_history(tracker, as_json, **wanted)


@command.command("usage", help="Print leases and device time by user and key (needs --state-dir there).")
@_HOST
@_PORT
@_KEY
@_USER
@_SINCE
@click.option("--json", "as_json", is_flag=True, help="Print them as one line of JSON.")
@click.pass_context
def usage(context: click.Context, /, host: str | None, port: int | None, as_json: bool, **wanted: Any) -> None:
    """Who used what."""
    with connect_tracker(_address(context, host, port)) as tracker:
        print_usage(tracker, as_json, **wanted)


def _address(context: click.Context, host: str | None, port: int | None) -> tuple[str, int]:
    """The tracker that is meant: given behind the subcommand, before it, or by the environment."""
    given_host, given_port = context.obj
    default_host, default_port = tracker_defaults()
    return host or given_host or default_host, port or given_port or default_port


def _look(address: tuple[str, int], as_json: bool, watch: bool) -> None:
    with connect_tracker(address) as tracker:
        try:
            while True:
                summary = tracker.summary()
                shown = "" if as_json else _as_text(address, summary)
                if watch and not as_json:
                    click.clear()  # only where there is a screen to clear
                print_json(summary) if as_json else say(shown)
                if not watch:
                    return
                time.sleep(EVERY_S)
        except KeyboardInterrupt:
            return  # how a watcher leaves


def _as_text(address: tuple[str, int], summary: dict[str, Any]) -> str:
    return f"Tracker address {address[0]}:{address[1]}\n\n{text_summary(summary)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0, 1 if there is no tracker, 2 for a bad flag."""
    escape_what_the_terminal_lacks()
    try:
        command.main(arguments, NAME, standalone_mode=False)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # the reader of the output has gone: `query_tracker | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except click.UsageError as error:
        return _fail(error.format_message(), UsageError.exit_status)
    except RpcsysError as error:
        return _fail(one_line(error), error.exit_status)


def _fail(message: str, status: int) -> int:
    click.echo(f"{NAME}: error: {' '.join(message.split())}", err=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
