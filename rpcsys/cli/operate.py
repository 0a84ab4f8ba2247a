"""What a lab's keeper does: end a lease, take a server out, let it in again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from rpcsys.cli.groups import Commands
from rpcsys.client import Tracker, connect_tracker
from rpcsys.link import parse_address, tracker_defaults


def _tracker(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--tracker", metavar="HOST:PORT", help="Where the tracker is (else RPCSYS_TRACKER_HOST and _PORT)."
    )(command)


def _connect(tracker: str | None) -> Tracker:
    return connect_tracker(parse_address(tracker, 9190) if tracker is not None else tracker_defaults())


@click.group("lease", cls=Commands, short_help="End a lease.")
def lease() -> None:
    """Leases that are out, as `query_tracker leases` shows them."""


@lease.command("end")
@click.argument("name", metavar="LEASE")
@click.option("--reason", default="", help="Why; it is recorded with the lease.")
@_tracker
def end(name: str, reason: str, tracker: str | None) -> None:
    """End LEASE, whoever holds it: its session is stopped, and the device goes to the next."""
    with _connect(tracker) as connection:
        connection.end_lease(name, reason)
    click.echo(f"lease {name} ends")


@click.command(short_help="Hand out nothing more of a server; its sessions go on.")
@click.argument("server")
@_tracker
def drain(server: str, tracker: str | None) -> None:
    """Hand out nothing more of SERVER. Sessions on it go on; `rpcsys enable SERVER` undoes it."""
    with _connect(tracker) as connection:
        connection.drain(server)
    click.echo(f"{server} gets no more sessions; undo with: rpcsys enable {server}")


@click.command(short_help="Undo a drain, or trust a server that was set aside.")
@click.argument("server")
@_tracker
def enable(server: str, tracker: str | None) -> None:
    """Hand SERVER out again, that was drained or set aside."""
    with _connect(tracker) as connection:
        connection.enable(server)
    click.echo(f"{server} gets sessions again")
