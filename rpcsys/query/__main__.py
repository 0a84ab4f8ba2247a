"""``query_tracker``, which is also ``python -m rpcsys.query``.

Prints what TVM's tool of that purpose prints, under the same headings, since people's scripts read it.
Works against TVM's tracker as well as ours.
"""

from __future__ import annotations

import json
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

NAME = "query_tracker"
EVERY_S = 1.0
"""How long `--watch` waits between two looks."""


@click.command(
    NAME, help="Print a tracker's servers, and how many are free and how many requests wait, by key."
)
@click.option(
    "--host", help="The tracker's host (default: RPCSYS_TRACKER_HOST, TVM_TRACKER_HOST or 127.0.0.1)."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="The tracker's port (default: RPCSYS_TRACKER_PORT, TVM_TRACKER_PORT or 9190).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole summary as one line of JSON.")
@click.option("--watch", is_flag=True, help="Look again every second, until Ctrl-C.")
def command(host: str | None, port: int | None, as_json: bool, watch: bool) -> None:
    """Look once, or for as long as somebody watches."""
    default_host, default_port = tracker_defaults()
    address = (host or default_host, port or default_port)
    with connect_tracker(address) as tracker:
        try:
            while True:
                shown = _as_json(tracker.summary()) if as_json else _as_text(address, tracker.summary())
                if watch and not as_json:
                    click.clear()  # only where there is a screen to clear
                click.echo(shown)
                if not watch:
                    return
                time.sleep(EVERY_S)
        except KeyboardInterrupt:
            return  # how a watcher leaves


def _as_json(summary: dict[str, Any]) -> str:
    return json.dumps(summary)


def _as_text(address: tuple[str, int], summary: dict[str, Any]) -> str:
    return f"Tracker address {address[0]}:{address[1]}\n\n{text_summary(summary)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0, 1 if there is no tracker, 2 for a bad flag."""
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
