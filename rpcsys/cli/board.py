"""``rpcsys board`` and ``rpcsys pack``: manage boards over ssh, and write the archive for one kind of board."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from rpcsys import progress
from rpcsys.board import inventory, lifecycle
from rpcsys.board.inventory import Entry
from rpcsys.board.package import WHEELS, Packer
from rpcsys.cli import options
from rpcsys.client import connect_tracker
from rpcsys.errors import ConfigError, RpcsysError, Unauthorized, UsageError, one_line, there_are
from rpcsys.link import credential
from rpcsys.link.address import each_address, parse_address, parse_tracker, split_address, tracker_text
from rpcsys.module import toolchain
from rpcsys.query import terminal

AT_ONCE = 32  # the most boards to work on at the same time: they mostly wait for sessions to end

_SSH = (
    ("-p", "port", "PORT", "ssh's port on the board."),
    ("-i", "identity", "FILE", "A key to log in with."),
    ("-o", "setting", "OPTION", "Any option of ssh, such as StrictHostKeyChecking=accept-new."),
    ("-F", "configuration", "FILE", "ssh's configuration, in place of ~/.ssh/config."),
    ("-J", "jump", "[USER@]HOST", "A host to go through."),
)


_remembered = [
    click.option(*names, metavar=word, multiple=True, help=f"{text} Remembered.") for *names, word, text in _SSH
]
_ssh_options = terminal.with_options(*_remembered)
_FROM_WHEELS = click.option("--from-wheels", is_flag=True,
                            help="TVM's libraries from PyPI's wheels for the board's platform.")  # fmt: skip
_DRIVERS = click.option("--with-libraries", "drivers", metavar="A.so:B.so", multiple=True,
                        help="Drivers for TVM's sessions; repeatable.")  # fmt: skip
_DRAIN = click.option("--drain-timeout", "drain_s", type=click.IntRange(0), default=int(lifecycle.DRAIN_S),
                      show_default=True, metavar="S", help="How long to wait for running sessions.")  # fmt: skip
_packing = terminal.with_options(
    _FROM_WHEELS,
    click.option("--libraries", metavar="DIR", type=click.Path(exists=True, file_okay=False, resolve_path=True),
                 help="TVM's libraries from a build folder."),
    _DRIVERS,
    click.option("--archive", type=options.FilePath(exists=True, dir_okay=False),
                 help="Install this archive of `rpcsys pack` and pack nothing."),
    click.option("--wait", "wait_s", type=options.Number(0), default=60.0, show_default=True, metavar="S",
                 help="How long to wait until the tracker shows it."),
)  # fmt: skip


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For shell completion: the boards in the inventory."""
    try:
        return [name for name in sorted(inventory.load()) if name.startswith(incomplete)]
    except RpcsysError:
        return []


@click.group(cls=options.CommandGroup, short_help="Install, upgrade, remove and list boards over ssh.")
def board() -> None:
    """Manage boards from this machine, over ssh.

    A board needs sshd and Python 3.8 or later. The inventory of boards is ~/.local/state/rpcsys/boards.json.
    """


_ADD = """Pack for the board at USER@HOST, install a server there, and wait until the tracker shows it.

\b
rpcsys board add pi@10.0.0.7 --key rpi4 --tracker lab-host:9190
rpcsys board add root@board --key rv --name rv1 -- --slots 2 --label a=b
"""


class _WithServersFlags(click.Command):
    """A command whose line ends in ``--`` and flags of the server: one that stands before is explained."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. Raises UsageError for a server's flag before the ``--``."""
        from rpcsys.server import config

        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not config.parser().has(error.option_name):
                raise
            how = f"the server's flags belong behind --: rpcsys board add USER@HOST --key KEY -- {error.option_name} …"
            raise UsageError(how) from None


@board.command(cls=_WithServersFlags, help=_ADD, short_help="Install a server on a board, and wait until it serves.")
@click.argument("destination", metavar="USER@HOST[:PORT]")
@click.argument("flags", metavar="[-- SERVER'S FLAGS]", nargs=-1, type=click.UNPROCESSED)
@click.option("--key", required=True, help="The kind of device, such as rpi4.")
@click.option("--tracker", metavar="HOST:PORT",
              help="The tracker's address for the board; replicas' with commas (default: RPCSYS_TRACKER).")  # fmt: skip
@click.option("--name", default="", help="The server's name in the lab (default: the board's own).")
@click.option("--root", default="", metavar="DIR",
              help="Install below DIR there, which needs no root and starts nothing at boot.")  # fmt: skip
@click.option("--python", default="", metavar="PYTHON",
              help="Its Python (default: the first of python3, python3.14, … that is new enough).")  # fmt: skip
@_packing
@_ssh_options
def add(
    destination: str, flags: tuple[str, ...], key: str, tracker: str | None, name: str, root: str, python: str,
    from_wheels: bool, libraries: str | None, drivers: tuple[str, ...], archive: Path | None, wait_s: float,
    **ssh: tuple[str, ...],
) -> None:  # fmt: skip
    """The command; `_ADD` describes it."""
    where = tracker_text(options.tracker_address(tracker, options.PORT))
    destination, ssh["port"] = _split_port(destination, ssh["port"])
    if name:
        inventory.check_name(name)
    options.check_key(key)
    if root and not root.startswith("/"):
        raise ConfigError(f"--root {root}: write the whole path, from / on")
    packed = _libraries(from_wheels, libraries, drivers)
    entry = Entry(name, destination, _words(ssh), key, where, root, python, **packed)
    wanted = ("--key", key, "--tracker", where, *flags)
    places = _places(wanted)
    known = inventory.load().get(name)
    if known is not None and not known.same_board(entry):
        how = f"give this one another name with --name, or type: rpcsys board remove {name}"
        raise UsageError(f"this desk keeps a board called {name} already, {known.destination}: {how}")
    enrol = None if _has_credential(flags) else _enrolling(where)
    with _packer(archive) as packer:
        added = lifecycle.add(entry, wanted, places, packer, _terminal(destination), wait_s, enrol)
    with inventory.changing() as boards:
        boards[added.name] = added
    click.echo(f"{added.name} serves {key} with rpcsys {added.version}")


def _has_credential(flags: Sequence[str]) -> bool:
    return any(flag == "--lab" or flag.startswith("--lab=") for flag in flags)


def _enrolling(where: str) -> lifecycle.Enrol | None:
    """How servers become members of the lab of the tracker at ``where``; None if this machine has no credential for it.

    Raises ConfigError: a credential is damaged.
    """
    if credential.for_replicas(parse_tracker(where)) is None:
        return None
    from rpcsys.cli import lab

    return lambda name, key: lab.board_credential(where, name, (key,))


def _split_port(destination: str, ports: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """A destination without a port behind its host, and the values of ssh's ``-p``: ssh takes the port there only."""
    user, at, host = destination.rpartition("@")
    name, port = split_address(host) if host else (host, None)
    if port is None:
        return destination, ports
    if not port.isdigit() or any(other != port for other in ports):
        raise UsageError(f"{destination}: write USER@HOST:PORT, with a number, or USER@HOST and one -p PORT")
    return f"{user}{at}{name}", (port,)


def _words(ssh: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(word for flag, name, _, _ in _SSH for value in ssh[name] for word in (flag, _whole(flag, value)))


def _whole(flag: str, value: str) -> str:
    """A file's absolute path, since the inventory is used from any folder. ``-F none`` is not a file."""
    is_file = flag in ("-i", "-F") and value != "none"
    return str(Path(value).expanduser().absolute()) if is_file else value


def _libraries(from_wheels: bool, libraries: str | None, drivers: tuple[str, ...]) -> dict[str, Any]:
    if from_wheels and libraries:
        raise UsageError("--libraries and --from-wheels: TVM's libraries come from one of them")
    paths = tuple(str(path.absolute()) for path in _paths(drivers))
    for path in paths:
        if not Path(path).is_file():
            raise UsageError(f"--with-libraries {path}: there is no such file")
    return {"libraries": WHEELS if from_wheels else libraries or "", "drivers": paths}


def _paths(drivers: tuple[str, ...]) -> list[Path]:
    return [Path(path) for text in drivers for path in text.split(":") if path]


def _warn(text: str) -> None:
    click.echo(f"rpcsys: warning: {text}", err=True)


def _places(flags: Sequence[str]) -> list[tuple[str, int]]:
    """The addresses that a server with these flags connects to: tracker or proxies. Raises UsageError."""
    from rpcsys.server import config

    parser = config.parser()
    parser.prog = "rpcsys server"  # whose help has the flags
    says = parser.parse_args(list(flags))
    if says.name:
        raise UsageError("--name belongs before the --: rpcsys board add --name NAME …")
    if says.through_proxy:
        return [parse_address(host, says.port or config.ServerConfig.port) for host in says.host or []]
    return list(each_address(parse_tracker(says.tracker)))


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
        yield Packer(Path(folder), archive, _warn)


def _kept(names: Sequence[str], everything: bool = False) -> list[Entry]:
    boards = inventory.load()
    for name in names:
        if name not in boards:
            how = "" if boards else " yet; rpcsys board add makes the first"
            raise UsageError(f"this desk keeps no board called {name}: {there_are(sorted(boards))}{how}")
    if everything and not boards:
        raise UsageError("this desk keeps no boards yet; rpcsys board add makes the first")
    if not names and not everything:
        raise UsageError("which board? Name it, or say --all")
    return [boards[name] for name in (names or sorted(boards))]


@board.command(short_help="Put this machine's version of rpcsys on boards.")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=_names)
@click.option("--all", "everything", is_flag=True, help="All boards of the inventory.")
@_DRAIN
@_packing
def upgrade(
    names: tuple[str, ...], everything: bool, drain_s: int, archive: Path | None, wait_s: float,
    from_wheels: bool, libraries: str | None, drivers: tuple[str, ...],
) -> None:  # fmt: skip
    """Put this machine's version of rpcsys on boards.

    A board takes no new sessions, its running ones end, and the new version starts with the same flags. Several boards
    are upgraded at the same time; one that fails keeps its version, and does not stop the others.
    """
    entries = _kept(names, everything)
    chosen = _libraries(from_wheels, libraries, drivers)
    changes = {field: value for field, value in chosen.items() if value}

    def one(entry: Entry, screen: lifecycle.Terminal, packer: Packer) -> str:
        done, changed = lifecycle.upgrade(replace(entry, **changes), packer, screen, drain_s, wait_s)
        with inventory.changing() as boards:
            for each in list(boards.values()):
                if each.same_board(entry):
                    boards[each.name] = replace(each, version=done.version, target=done.target, **changes)
        return f"{entry.name} {'has' if changed else 'had'} rpcsys {done.version}{'' if changed else ' already'}"

    _each(_one_for_each_board(entries), archive, one)


def _one_for_each_board(entries: Sequence[Entry]) -> list[Entry]:
    return [each for at, each in enumerate(entries) if not any(each.same_board(other) for other in entries[:at])]


def _each(
    entries: Sequence[Entry], archive: Path | None, work: Callable[[Entry, lifecycle.Terminal, Packer], str]
) -> None:
    """Do ``work`` on several boards at once, and print what it returns; one that fails does not stop the others.

    Raises RpcsysError: the last of their errors; the others are printed.
    """
    ask = len(entries) == 1 and sys.stdin.isatty()

    def one(entry: Entry) -> str:
        try:
            click.echo(work(entry, _terminal(entry.name, interactive=ask), packer))
        except RpcsysError as error:
            return one_line(error)
        return ""

    with _packer(archive) as packer, ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            said = list(pool.map(one, entries))
        except BaseException:  # Ctrl-C: boards that have not begun stay as they are
            pool.shutdown(cancel_futures=True)
            raise
    errors = [(entry.name, error) for entry, error in zip(entries, said, strict=True) if error]
    for name, error in errors[:-1]:
        click.echo(f"rpcsys: error: {name}: {error}", err=True)
    if errors:
        raise RpcsysError(": ".join(errors[-1]))


@board.command(short_help="Give boards that are there their credentials for the lab.")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=_names)
@click.option("--all", "everything", is_flag=True, help="All boards of the inventory.")
@click.option("--anew", is_flag=True, help="Also those that have one: that ends, and their sessions with it.")
@_DRAIN
@_packing
def secure(
    names: tuple[str, ...], everything: bool, anew: bool, drain_s: int, archive: Path | None, wait_s: float,
    from_wheels: bool, libraries: str | None, drivers: tuple[str, ...],
) -> None:  # fmt: skip
    """Make boards members of the lab that their tracker has, with this machine's version of rpcsys.

    Each gets a credential of its own, over ssh, and starts again with it once its running sessions have ended.
    """
    entries = _kept(names, everything)
    changes = {field: value for field, value in _libraries(from_wheels, libraries, drivers).items() if value}

    def one(entry: Entry, screen: lifecycle.Terminal, packer: Packer) -> str:
        enrol = _enrolling(entry.tracker)
        if enrol is None:
            raise Unauthorized(f"there is no credential here for a lab at {entry.tracker}: type rpcsys login first")
        changed = replace(entry, **changes)
        done, had_none = lifecycle.secure(changed, packer, screen, drain_s, wait_s, enrol, anew=anew)
        with inventory.changing() as boards:
            boards[entry.name] = done
        return f"{entry.name} {'has' if had_none else 'had'} a credential{'' if had_none else ' already'}"

    def all_on_one(entry: Entry, screen: lifecycle.Terminal, packer: Packer) -> str:
        return "\n".join(one(each, screen, packer) for each in entries if each.same_board(entry))

    _each(_one_for_each_board(entries), archive, all_on_one)


@board.command(short_help="Remove a server from its board.")
@click.argument("name", shell_complete=_names)
@click.option("--forget", is_flag=True, help="Remove a board that is gone from the inventory only.")
def remove(name: str, forget: bool) -> None:
    """Remove the server NAME from its board, and with a board's last one all of rpcsys.

    Its sessions get the server's --grace to end; for more time run `rpcsys drain` first.
    """
    (entry,) = _kept([name])
    there = not forget and lifecycle.remove(entry, _terminal(name))
    if _enrolling(entry.tracker) is not None:
        _revoke(entry)
    with inventory.changing() as boards:
        boards.pop(name, None)
    forgotten = "is forgotten" if forget else "is forgotten: nothing was installed there"
    click.echo(f"{name} {'is removed' if there else forgotten}")


def _revoke(entry: Entry) -> None:
    """End the membership of a server that is gone; what is in the way is a warning."""
    from rpcsys.cli import lab

    try:
        lab.revoke_board(entry.tracker, entry.name)
    except RpcsysError as error:
        _warn(f"its credential may be valid still: {one_line(error)}; see: rpcsys lab members")


@board.command("list", short_help="List this machine's boards, with their versions.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
@click.option("--offline", is_flag=True, help="Print the inventory, without connections.")
def list_(as_json: bool, offline: bool) -> None:
    """List this machine's boards: the tracker's state of each, and its installed version."""
    boards = inventory.load()
    entries = [boards[name] for name in sorted(boards)]
    found = [{**asdict(entry), "installed": entry.version, "state": ""} for entry in entries]
    if not offline:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            versions = pool.map(lifecycle.installed, entries)
            summaries = {where: pool.submit(_summary, where) for where in {entry.tracker for entry in entries}}
            for row, version in zip(found, versions, strict=True):
                summary = summaries[row["tracker"]].result()
                row["installed"] = version
                row["state"] = "no tracker" if summary is None else lifecycle.state(summary, row["name"])
    if found or as_json:
        columns = ("name", "key", "destination", "target", "installed", "state")
        terminal.print_rows(found, dict(zip(columns, columns, strict=True)), as_json)
    else:
        click.echo("no boards yet; rpcsys board add makes the first")


def _summary(where: str) -> Mapping[str, Any] | None:
    try:
        with connect_tracker(parse_tracker(where)) as tracker:
            return tracker.summary()
    except RpcsysError:
        return None


_PACK = """Pack what a board needs to serve, for boards that have Python 3.8 or later and nothing else.

\b
On the board:  tar xf rpcsys-device.tar.gz
               ./rpcsys-device/bin/rpcsys-server --tracker HOST:PORT --key KEY
               sudo ./rpcsys-device/install.sh --tracker HOST:PORT --key KEY
"""


@click.command(help=_PACK, short_help="Pack the device runtime for one kind of board.")
@click.option("--target", required=True, help=f"The kind of board: {', '.join(toolchain.names())}.")
@click.option("-o", "--output", "archive", type=options.FILE, default=Path("rpcsys-device.tar.gz"), show_default=True,
              help="The archive to write.")  # fmt: skip
@click.option("--libraries", "folder", metavar="DIR", type=options.FILE, help="TVM's libraries from a build folder.")
@_FROM_WHEELS
@_DRIVERS
@click.option("--glibc", metavar="VERSION",
              help="The board's C library, such as 2.27: refuse libraries that need a newer one.")  # fmt: skip
@click.option("--speedups", metavar="FILE", type=options.FILE,
              help="The library for faster calls from this file, or none; it is compiled if not given.")  # fmt: skip
def pack(
    target: str, archive: Path, folder: Path | None, from_wheels: bool, drivers: tuple[str, ...], glibc: str | None,
    speedups: Path | None,
) -> None:  # fmt: skip
    """The command; `_PACK` describes it."""
    from rpcsys.pack import build

    named = _paths(drivers)
    fast = speedups != Path("none") and (speedups or True)
    with progress.steps(lines=False) as step:
        packed = build.pack(
            target, archive, folder=folder, from_wheels=from_wheels, drivers=named, glibc=glibc, speedups=fast,
            say=step.say,
        )  # fmt: skip
    for remark in packed.remarks:
        _warn(remark)
    click.echo(f"{packed.path}: {terminal.megabytes(packed.size)} for {target}")
    needs = {"Python": "python", "glibc": "glibc", "libstdc++": "glibcxx"}
    wanted = [(f"needs {name}", packed.manifest[key]) for name, key in needs.items()]
    terminal.print_pairs([(name, f"{version} or later") for name, version in wanted if version])
    terminal.print_pairs([("libraries", ", ".join(packed.manifest["libraries"]) or "none of TVM's")])
    terminal.print_pairs([("speedups", ", ".join(packed.manifest["speedups"]) or "none")])
