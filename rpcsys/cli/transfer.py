"""``rpcsys push`` and ``rpcsys pull``: files between this machine and the board of a hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rpcsys.client import Session, attaching
from rpcsys.errors import UsageError, printable
from rpcsys.query import terminal

if TYPE_CHECKING:
    from rpcsys.client.transfers import TransferReport


@click.command(short_help="Copy files to the board that this shell holds.")
@click.argument("local")
@click.argument("remote", required=False, default="")
def push(local: str, remote: str) -> None:
    """Copy the file or folder LOCAL to REMOTE on the board of this shell's hold (default: its own name).

    Only what has changed is copied: another size, time or mode. REMOTE is relative to the session's folder; one that
    ends in / is a folder to copy into.
    """
    with _attached() as session:
        moved = session.push(local, remote, progress=True)
    _say(moved)


@click.command(short_help="Copy files from the board that this shell holds.")
@click.argument("remote")
@click.argument("local", required=False, default="")
def pull(remote: str, local: str) -> None:
    """Copy the file or folder REMOTE of the board of this shell's hold to LOCAL (default: its own name).

    Only what has changed is copied, as with rpcsys push.
    """
    with _attached() as session:
        moved = session.pull(remote, local, progress=True)
    _say(moved)


def _attached() -> Session:
    path = attaching.here()
    if not path:
        raise UsageError("this shell holds no board, and files end with their lease; type: rpcsys shell --key KEY")
    return attaching.attach(path)


def _say(moved: TransferReport) -> None:
    for name in moved.left_out:
        why = "it is neither a file nor a folder, or its name is no text"
        terminal.say(f"rpcsys: warning: left out ({why}): {printable(name)}", err=True)
    unchanged = f", {moved.unchanged} unchanged" if moved.unchanged else ""
    click.echo(f"{terminal.counted(moved.files, 'file')}, {terminal.megabytes(moved.bytes)}{unchanged}")
