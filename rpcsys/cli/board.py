"""``rpcsys board``: boards installed, upgraded, removed and listed from a desk, over ssh."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from rpcsys.board import inventory, lifecycle
from rpcsys.board.inventory import Boards, Entry
from rpcsys.board.package import WHEELS, Packer
from rpcsys.cli.groups import Commands
from rpcsys.client import connect_tracker
from rpcsys.errors import ConfigError, RpcsysError, UsageError, one_line
from rpcsys.link import address_text, parse_address, tracker_defaults
from rpcsys.query.table import print_table

AT_ONCE = 32
"""Boards that are worked on at the same time: most of it is waiting for sessions to end."""

_SSH = (
    ("-p", "port", "PORT", "ssh's port on the board."),
    ("-i", "identity", "FILE", "A key to log in with."),
    ("-o", "setting", "OPTION", "Any option of ssh, such as StrictHostKeyChecking=accept-new."),
    ("-F", "configuration", "FILE", "ssh's configuration, in place of ~/.ssh/config."),
    ("-J", "jump", "[USER@]HOST", "A host to go through."),
)


def _ssh_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for flag, name, metavar, text in reversed(_SSH):
        command = click.option(flag, name, metavar=metavar, multiple=True, help=f"{text} Remembered.")(command)
    return command


def _packing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options about what is packed."""
    options = (
        click.option("--from-wheels", is_flag=True, help="TVM's libraries from PyPI's wheels."),
        click.option(
            "--libraries",
            metavar="DIR",
            type=click.Path(exists=True, file_okay=False, resolve_path=True),
            help="TVM's libraries from a build folder.",
        ),
        click.option("--with-libraries", "drivers", metavar="A.so:B.so", multiple=True, help="Drivers to go along; repeatable."),
        click.option("--archive", type=click.Path(path_type=Path), help="Install this archive of `rpcsys pack`; nothing is packed."),
        click.option(
            "--wait", "wait_s", type=click.FloatRange(0), default=60.0, show_default=True, metavar="S",
            help="How long the tracker is watched for it.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For a shell that completes: the boards that this desk keeps."""
    try:
        return [name for name in sorted(inventory.load()) if name.startswith(incomplete)]
    except RpcsysError:
        return []


@click.group(cls=Commands, short_help="Install, upgrade, remove and list boards over ssh.")
def board() -> None:
    """Keep boards from this desk, over ssh.

    A board needs sshd and Python 3.8 or later. What this desk keeps is remembered in ~/.local/state/rpcsys/boards.json.
    """


_ADD = """Pack for the board at USER@HOST, install a server there, and wait until the tracker shows it.

\b
rpcsys board add pi@10.0.0.7 --key rpi4 --tracker lab-host:9190
rpcsys board add root@board --key rv --name rv1 -- --slots 2 --label a=b
"""


@board.command(help=_ADD, short_help="Install a server on a board, and wait until it serves.")
@click.argument("destination", metavar="USER@HOST")
@click.argument("flags", metavar="[-- SERVER'S FLAGS]", nargs=-1, type=click.UNPROCESSED)
@click.option("--key", required=True, help="What kind of device it is, such as rpi4.")
@click.option(
    "--tracker",
    metavar="HOST:PORT",
    help="Where it registers, as the board knows it (else RPCSYS_TRACKER_HOST and _PORT).",
)
@click.option("--name", default="", help="The server's name in the lab (default: the board's own).")
@click.option(
    "--root", default="", metavar="DIR", help="Install below DIR there, which needs no root and starts nothing at boot."
)
@click.option(
    "--python",
    default="",
    metavar="PYTHON",
    help="Its Python (default: the first of python3, python3.14, … that will do).",
)
@_packing
@_ssh_options
def add(
    destination: str, flags: tuple[str, ...], key: str, tracker: str | None, name: str, root: str, python: str,
    from_wheels: bool, libraries: str | None, drivers: tuple[str, ...], archive: Path | None, wait_s: float,
    **ssh: tuple[str, ...],
) -> None:  # fmt: skip
    """The command; what it does is said in `_ADD`."""
    host, port = parse_address(tracker, 9190) if tracker is not None else tracker_defaults()
    where = address_text(host, port)
    if name:
        inventory.check_name(name)
    if root and not root.startswith("/"):
        raise ConfigError(f"--root {root}: write the whole path, from / on")
    entry = Entry(
        name, destination, _words(ssh), key, where, root, python, **_libraries(from_wheels, libraries, drivers)
    )
    wanted = ("--key", key, "--tracker", where, *flags)
    places = _places(wanted)
    _see_that_it_is_new(inventory.load(), entry)
    with _packer(archive) as packer:
        added = lifecycle.add(entry, wanted, places, packer, _terminal(destination), wait_s)
    with inventory.changing() as boards:
        boards[added.name] = added
    click.echo(f"{added.name} serves {key} with rpcsys {added.version}")


def _see_that_it_is_new(boards: Boards, entry: Entry) -> None:
    known = boards.get(entry.name)
    if known is not None and not known.same_board(entry):
        raise UsageError(
            f"this desk keeps a board called {known.name} already, {known.destination}: give this one another name "
            f"with --name, or type: rpcsys board remove {known.name}"
        )


def _words(ssh: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The flags of ssh, as they are written in its command line."""
    return tuple(word for flag, name, _, _ in _SSH for value in ssh[name] for word in (flag, _whole(flag, value)))


def _whole(flag: str, value: str) -> str:
    """A file's whole path: what is remembered is used from anywhere. ``-F none`` is no file."""
    is_file = flag in ("-i", "-F") and value != "none"
    return str(Path(value).expanduser().absolute()) if is_file else value


def _libraries(from_wheels: bool, libraries: str | None, drivers: tuple[str, ...]) -> dict[str, Any]:
    if from_wheels and libraries:
        raise UsageError("--libraries and --from-wheels: TVM's libraries come from one of them")
    paths = [str(Path(path).absolute()) for text in drivers for path in text.split(":") if path]
    return {"libraries": WHEELS if from_wheels else libraries or "", "drivers": tuple(paths)}


def _places(flags: Sequence[str]) -> list[tuple[str, int]]:
    """What a server with these flags connects to: its tracker, or its proxies. Exits with 2 for what are no flags."""
    from rpcsys.server import config

    says = config.parser().parse_args(list(flags))
    if says.name:
        raise UsageError("--name belongs before the --: rpcsys board add --name NAME …")
    if says.through_proxy:
        return [parse_address(host, says.port) for host in says.host or []]
    return [parse_address(says.tracker)]


def _terminal(prefix: str, *, interactive: bool | None = None) -> lifecycle.Terminal:
    ask = sys.stdin.isatty() if interactive is None else interactive
    return lifecycle.Terminal(
        interactive=ask,
        say=lambda text: click.echo(f"{prefix}: {text}", err=True),
        password=(lambda text: str(click.prompt(text, hide_input=True, err=True))) if ask else None,
    )


@contextmanager
def _packer(archive: Path | None) -> Iterator[Packer]:
    with tempfile.TemporaryDirectory(prefix="rpcsys-board-") as folder:
        yield Packer(Path(folder), archive, lambda text: click.echo(f"rpcsys: warning: {text}", err=True))


def _kept(names: Sequence[str], everything: bool = False) -> list[Entry]:
    """The entries that are meant. Raises UsageError."""
    boards = inventory.load()
    for name in names:
        if name not in boards:
            known = ", ".join(sorted(boards)) or "none yet; rpcsys board add makes the first"
            raise UsageError(f"this desk keeps no board called {name}: there are {known}")
    if not names and not everything:
        raise UsageError("which board? Name it, or say --all")
    return [boards[name] for name in (names or sorted(boards))]


@board.command(short_help="Put this desk's version of rpcsys on boards.")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=_names)
@click.option("--all", "everything", is_flag=True, help="All that this desk keeps.")
@click.option(
    "--drain-timeout", "drain_s", type=click.IntRange(0), default=int(lifecycle.DRAIN_S), show_default=True, metavar="S",
    help="How long running sessions may go on.",
)  # fmt: skip
@_packing
def upgrade(
    names: tuple[str, ...], everything: bool, drain_s: int, archive: Path | None, wait_s: float,
    from_wheels: bool, libraries: str | None, drivers: tuple[str, ...],
) -> None:  # fmt: skip
    """Put this desk's version of rpcsys on boards.

    What runs there takes nothing new, ends with its last session, and the new version starts with the same flags. Several
    boards are upgraded at the same time; one that fails keeps what it had, and does not stop the others.
    """
    entries = _kept(names, everything)
    chosen = _libraries(from_wheels, libraries, drivers)
    changes = {field: value for field, value in chosen.items() if value}
    firsts = [each for at, each in enumerate(entries) if not any(each.same_board(other) for other in entries[:at])]
    ask = len(firsts) == 1 and sys.stdin.isatty()

    def one(entry: Entry) -> str:
        try:
            done, changed = lifecycle.upgrade(
                replace(entry, **changes), packer, _terminal(entry.name, interactive=ask), drain_s, wait_s
            )
        except RpcsysError as error:
            return one_line(error)
        with inventory.changing() as boards:
            for each in list(boards.values()):
                if each.same_board(entry):
                    boards[each.name] = replace(each, version=done.version, target=done.target, **changes)
        click.echo(f"{entry.name} {'has' if changed else 'had'} rpcsys {done.version}{'' if changed else ' already'}")
        return ""

    with _packer(archive) as packer, ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            said = list(pool.map(one, firsts))
        except BaseException:  # Ctrl-C: what has not begun stays as it is
            pool.shutdown(cancel_futures=True)
            raise
    errors = [(entry.name, error) for entry, error in zip(firsts, said, strict=True) if error]
    for name, error in errors[:-1]:
        click.echo(f"rpcsys: error: {name}: {error}", err=True)
    if errors:
        raise RpcsysError(": ".join(errors[-1]))


@board.command(short_help="Remove a server from its board.")
@click.argument("name", shell_complete=_names)
@click.option("--forget", is_flag=True, help="Do not ask the board, which is gone: only this desk forgets it.")
def remove(name: str, forget: bool) -> None:
    """Remove the server NAME from its board, and with a board's last one all of rpcsys.

    Its sessions get the server's --grace; `rpcsys drain` beforehand lets them end.
    """
    (entry,) = _kept([name])
    there = not forget and lifecycle.remove(entry, _terminal(name))
    with inventory.changing() as boards:
        boards.pop(name, None)
    click.echo(
        f"{name} is removed" if there else f"{name} is forgotten" + ("" if forget else ": nothing was installed there")
    )


@board.command("list", short_help="List this desk's boards, with their versions.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
@click.option("--offline", is_flag=True, help="Print what this desk remembers, and ask nobody.")
def list_(as_json: bool, offline: bool) -> None:
    """List this desk's boards: what the tracker sees of them, and the version that each has now."""
    entries = _kept([], everything=True)
    found = [{**asdict(entry), "installed": entry.version, "state": ""} for entry in entries]
    if not offline:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            versions = pool.map(lifecycle.installed, entries)
            summaries = {where: pool.submit(_summary, where) for where in {entry.tracker for entry in entries}}
            for row, version in zip(found, versions, strict=True):
                summary = summaries[row["tracker"]].result()
                row["installed"] = version
                row["state"] = "no tracker" if summary is None else lifecycle.state(summary, row["name"])
    if as_json:
        for row in found:
            click.echo(json.dumps(row))
        return
    if not found:
        click.echo("no boards yet; rpcsys board add makes the first")
        return
    columns = ("name", "key", "destination", "target", "installed", "state")
    print_table(columns, [[str(row[column]) for column in columns] for row in found])


def _summary(where: str) -> dict[str, Any] | None:
    try:
        with connect_tracker(parse_address(where)) as tracker:
            return tracker.summary()
    except RpcsysError:
        return None
