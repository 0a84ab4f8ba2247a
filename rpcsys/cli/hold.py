"""``rpcsys hold``, ``release``, ``holds`` and ``shell``: a board that stays yours between commands."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from rpcsys.cli import options
from rpcsys.cli.run import parse_labels
from rpcsys.client import attaching
from rpcsys.client import holds as kept
from rpcsys.client.attaching import VARIABLE, HoldFile
from rpcsys.client.holds import Hold
from rpcsys.errors import UsageError
from rpcsys.query import terminal

#: The variable of a shell that holds a board, for its prompt: ``rpi4@board7``.
SHOWN = "RPCSYS_HELD"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
#: The limit of a hold that nobody releases.
_USUAL = "8h"


class TimeSpan(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A time: ``90s``, ``30m``, ``2h``, ``1d``, or seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Its seconds. Raises click.BadParameter."""
        found = _SPAN.fullmatch(str(value))
        seconds = float(found[1]) * _UNITS[found[2]] if found is not None else 0.0
        if not 0 < seconds < 1e9:
            self.fail(f"{value!r} is no time: write 30m, 2h or 1d", param, ctx)
        return seconds


def _of_lease(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of what is leased."""
    wanted = [
        click.option("--key", help="The kind of device to lease."),
        click.option("--label", "labels", metavar="K=V", multiple=True, help="A label that it must have; repeatable."),
        click.option("--priority", type=options.Number(), default=1.0, show_default=True, help="Higher goes first."),
        click.option("--wait-timeout", type=options.Number(0), help="Seconds to wait for a device (else no limit)."),
        options.tracker,
    ]
    return terminal.with_options(*wanted)(function)


@click.command(short_help="Keep a device until it is released.")
@_of_lease
@click.option(
    "--for", "seconds", type=TimeSpan(), default=_USUAL, show_default=True, help="How long at most: 30m, 2h, 1d."
)
def hold(seconds: float, **lease: Any) -> None:
    """Lease a device and keep it, until `rpcsys release` or the time is over.

    The commands and programs of a shell use it after: eval "$(rpcsys hold --key rpi4)"
    """
    held = _held(seconds, tied=False, **lease)
    about, variables = held.about, held.environment()
    text = f"{about.server} is held for {terminal.span(seconds)}"
    terminal.say(f'{text}; to use it: eval "$(rpcsys hold …)", or paste the line below', err=True)
    click.echo("export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()))


@click.command(short_help="End a hold.")
@click.argument("file", required=False)
def release(file: str | None) -> None:
    """End the hold of FILE, by default of this shell (RPCSYS_LEASE); `rpcsys holds` lists all."""
    path = file or attaching.here()
    if not path:
        raise UsageError("this shell has no hold; give its FILE, which rpcsys holds shows")
    found = kept.release(path)
    again = "" if file else f"; type: unset {VARIABLE}"
    click.echo(f"{found.server} is released{again}" if not found.over else f"it was over already: {found.over}")


@click.command(short_help="List the holds of this machine.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each.")
def holds(as_json: bool) -> None:
    """List your holds on this machine, with the FILE that `rpcsys release` takes."""
    columns: Any = {
        "KEY": lambda one: one.lease["key"],
        "SERVER": lambda one: one.server,
        "SINCE": lambda one: terminal.span(max(0.0, time.time() - one.since)),
        "LEFT": _left,
        "FILE": lambda one: one.path,
    }
    found = kept.all_holds()
    if as_json:
        for one in found:
            fields = {"key": one.lease["key"], "server": one.server, "over": one.over, "file": one.path}
            terminal.print_json({**fields, "since": one.since, "until": one.until, "pid": one.pid})
    else:
        terminal.print_table(list(columns), [[show(one) for show in columns.values()] for one in found])


def _left(one: HoldFile) -> str:
    if one.over:
        return "over"
    return "" if one.until is None else terminal.span(max(0.0, one.until - time.time()))


@click.command(short_help="Hold a device for a shell.", context_settings={"allow_interspersed_args": False})
@_of_lease
@click.option("--for", "seconds", type=TimeSpan(), help="How long at most: 30m, 2h, 1d (else no limit).")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def shell(seconds: float | None, program: Sequence[str], **lease: Any) -> int:
    """Hold a device while your shell ($SHELL), or PROGRAM, runs; its exit status is this command's.

    Commands and programs in it use that device in place of waiting for one: rpcsys shell --key rpi4 -- make test
    """
    command = list(program) or [os.environ.get("SHELL") or "/bin/sh"]
    with _held(seconds, tied=True, **lease) as held:
        about = held.about
        if not program:
            terminal.say(f"{about.server} is held for this shell; exit releases it", err=True)
        shown = f"{about.lease['key']}@{about.server}"
        return _run(command, {**os.environ, **held.environment(), SHOWN: shown})


def _run(command: list[str], environment: dict[str, str]) -> int:
    """The exit status of a command that has the terminal."""
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UsageError(f"cannot run {command[0]}: {error.strerror}") from None
    with _deaf():
        try:
            status = process.wait()
        finally:
            if process.poll() is None:  # this command is told to end
                process.send_signal(signal.SIGHUP)
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Leave the terminal's signals to the shell."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _held(
    seconds: float | None, *, tied: bool, key: str | None, labels: Sequence[str], priority: float,
    wait_timeout: float | None, tracker: str | None,
) -> Hold:  # fmt: skip
    wanted = parse_labels(labels)
    if key is None and not wanted:
        raise UsageError("give --key, the kind of device to hold (query_tracker lists them), or a --label")
    if key is not None:
        options.check_key(key)
    path = attaching.here()
    if path and (now := attaching.read(path)).fits(key, wanted) and not now.over:
        raise UsageError(f"this shell holds {now.server} already: exit it first, or type: unset {VARIABLE}")
    where = options.tracker_address(tracker)
    more: dict[str, Any] = {"labels": wanted, "priority": priority, "wait_timeout": wait_timeout}
    return kept.hold(key, tracker=where, seconds=seconds, tied=tied, **more)
