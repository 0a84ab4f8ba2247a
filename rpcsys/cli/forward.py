"""``rpcsys forward``: ports of a board here, and ports of this machine there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import click

from rpcsys.cli.one_session import of_one_session, opened
from rpcsys.errors import ProgramError, UsageError, one_line
from rpcsys.query import terminal

_LOOK_S = 0.2  # between two looks whether the session is lost


@click.command(short_help="Reach a board's ports here, or this machine's there.")
@of_one_session
@click.option("--reverse", is_flag=True, help="Programs on the board reach DESK_PORT of this machine, at BOARD_PORT.")
@click.argument("ports", metavar="BOARD_PORT[:DESK_PORT]...", nargs=-1, required=True)
def forward(reverse: bool, ports: Sequence[str], **where: Any) -> None:
    """Reach BOARD_PORT of a board at DESK_PORT of 127.0.0.1 (default: the same number), until Ctrl-C.

    For any number of connections. The server needs --allow-exec.
    """
    pairs = [_parsed(text) for text in ports]
    with opened(**where) as session, contextlib.ExitStack() as stack:
        for board, desk in pairs:
            try:
                port = stack.enter_context(session.forward(board, desk, reverse=reverse)).port
            except ProgramError as error:  # as for a port here: it is another number that helps
                raise UsageError(one_line(error)) from None
            here, there = f"127.0.0.1:{desk if reverse else port}", f"{port if reverse else board} of the board"
            terminal.say(f"{there} is {here}" if reverse else f"{here} is {there}")
        while session.closed is None:
            time.sleep(_LOOK_S)
        raise session.closed


def _parsed(text: str) -> tuple[int, int]:
    board, colon, desk = text.partition(":")
    numbers = [board, desk if colon else board]
    if not all(each.isascii() and each.isdecimal() and 0 < int(each) <= 0xFFFF for each in numbers):
        raise UsageError(f"{text!r}: ports look like 8080, or 8080:18080, from 1 to 65535")
    return int(numbers[0]), int(numbers[1])
