"""What is done with a board: installed, upgraded, removed, asked. Every step has a time, and an end leaves nothing half done.

That is `install.sh`'s doing: a version is copied beside the one in use, checked, and put in its place in one step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import IO

from rpcsys.board import facts, seen, trouble
from rpcsys.board.inventory import Entry, check_name
from rpcsys.board.package import Package, Packer
from rpcsys.board.ssh import COMMAND_S, Connection
from rpcsys.client import connect_tracker
from rpcsys.errors import ConnectError, RpcsysError
from rpcsys.link import parse_address

COPY_S = 600.0
"""For an archive of some megabytes over a poor line."""

INSTALL_S = 300.0
"""For a copy, two syncs and a self-test on a slow card."""

DRAIN_S = 3600.0
"""For running sessions at an upgrade, if nothing else is said: as install.sh has it."""

REACH_S = 10
"""For a board to reach the tracker."""

_COPY = """
cat >"$1/device.tar" && "$2" -c '
import hashlib, sys
with open(sys.argv[1], "rb") as file:
    print("rpcsys-digest " + hashlib.sha256(file.read()).hexdigest())' "$1/device.tar"
"""
_UNPACK = """
cd "$1" && { gzip -dc device.tar 2>/dev/null || xz -dc device.tar; } | tar xf - && rm device.tar && test -f rpcsys-device/install.sh
"""
_REACH = """"$1" -c '
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()
except OSError as error:
    sys.exit(str(error))' "$2" "$3" "$4"
"""
_LOG = """
tail -n 1 "$1/var/log/rpcsys/$2.log" 2>/dev/null ||
    journalctl --quiet --no-pager --lines=1 --output=cat "_SYSTEMD_UNIT=rpcsys-server@$2.service" 2>/dev/null
"""


@dataclass(frozen=True)
class Desk:
    """What a person at the desk gives: whether ssh may ask them, how they hear of progress, and sudo's password."""

    interactive: bool = False
    say: Callable[[str], None] = lambda _text: None
    password: Callable[[str], str] | None = None


class Board:
    """A board at the other end of an open connection, and what it said of itself. Raises RpcsysError if it says nothing."""

    def __init__(self, connection: Connection, entry: Entry, desk: Desk) -> None:
        self.connection = connection
        self.entry = entry
        self.desk = desk
        self.host = connection.host
        self._asked = (entry.python,) if entry.python else facts.PYTHONS
        said = connection.run(facts.SCRIPT, entry.root, *self._asked)
        if said.status:
            raise trouble.of_board(said.out + said.err, self.host, "looking at the board")
        self.facts = facts.parse(said.out)

    def python(self) -> facts.Python:
        """The Python that serves. Raises RpcsysError."""
        return facts.python(self.facts, self.host, self._asked)

    def reach(self, places: Sequence[tuple[str, int]]) -> None:
        """See that the board reaches one of these trackers or proxies. Raises RpcsysError."""
        failed = ""
        for host, port in places:
            said = self.connection.run(_REACH, self.python().name, host, str(port), str(REACH_S))
            if not said.status:
                return
            failed = f"{host}:{port} ({(said.err.strip().splitlines() or ['no answer'])[-1]})"
        raise RpcsysError(
            f"{self.host} cannot reach the tracker or proxy at {failed}: is it running, and is that its address for boards?"
        )

    def install(self, package: Package, flags: Sequence[str], drain_s: float) -> None:
        """Copy ``package`` and have it install itself with ``flags``. Raises RpcsysError."""
        python = self.python()
        base = facts.roomy(self.facts, package.needs, self.host)
        how = facts.rights(self.facts, self.entry.root, self.host)
        with self.connection.folder(base) as folder, package.path.open("rb") as file:
            self.desk.say(f"copies {package.size / 1e6:.1f} MB")
            said = self.connection.run(_COPY, folder, python.name, stdin=file, timeout_s=COPY_S)
            if said.status:
                raise trouble.of_board(said.out + said.err, self.host, "copying")
            if f"rpcsys-digest {package.digest}" not in said.out:
                raise RpcsysError(
                    f"what arrived at {self.host} is not what was sent: try again; is its memory or disk failing?"
                )
            said = self.connection.run(_UNPACK, folder, timeout_s=INSTALL_S)
            if said.status:
                raise trouble.of_board(said.out + said.err, self.host, "unpacking")
            self.desk.say(f"installs {package.name}")
            drain = ["--drain-timeout", str(int(drain_s))]
            self._installer(f"{folder}/rpcsys-device/install.sh", [*drain, *flags], how, INSTALL_S + drain_s)

    def uninstall(self) -> None:
        """Remove this server, and all of rpcsys with the board's last one. Raises RpcsysError."""
        how = facts.rights(self.facts, self.entry.root, self.host)
        installed = f"{self.entry.root}/opt/rpcsys/current/install.sh"
        self._installer(installed, ["--uninstall", "--name", self.entry.name], how, INSTALL_S)

    def _installer(self, script: str, flags: Sequence[str], how: str, timeout_s: float) -> None:
        words = ["sh", script, *flags]
        if self.entry.root:
            words += ["--root", self.entry.root]
        python = self.python().name
        if python != "python3":
            words = ["env", f"RPCSYS_PYTHON={python}", *words]
        if how == "sudo":
            words = ["sudo", "-n", *words]
        elif how == "password":
            words = ["sudo", "-S", "-p", "", *words]
        with _typed(self._password() if how == "password" else "") as stdin:
            said = self.connection.run('exec "$@"', *words, stdin=stdin, timeout_s=timeout_s)
        if said.status:
            raise trouble.of_board(said.out + "\n" + said.err, self.host, "install.sh")

    def _password(self) -> str:
        if self.desk.password is None:
            raise RpcsysError(f"sudo on {self.host} asks for a password: type this at a terminal, or connect as root")
        return self.desk.password(f"Password for sudo on {self.connection.destination}")

    def last_words(self) -> str:
        """The last line of the server's log, or nothing."""
        said = self.connection.run(_LOG, self.entry.root, self.entry.name, timeout_s=COMMAND_S)
        return said.out.strip()[-300:]


def _typed(text: str) -> IO[bytes]:
    """A file that holds what somebody would type; on no disk."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as stream:
        stream.write(text.encode() + b"\n")
    return os.fdopen(reading, "rb")


def connected(entry: Entry, desk: Desk) -> Connection:
    """The connection to the board of ``entry``; a context manager."""
    return Connection(entry.destination, entry.options, interactive=desk.interactive)


def add(
    entry: Entry, flags: Sequence[str], places: Sequence[tuple[str, int]], packer: Packer, desk: Desk, wait_s: float
) -> Entry:
    """Install a server and wait until the tracker shows it; what to remember of it.

    ``entry.name`` may be empty for the board's own name. ``flags`` are the server's, ``places`` what it will
    connect to: one of them has to be within the board's reach. Raises RpcsysError.
    """
    with connected(entry, desk) as connection:
        board = Board(connection, entry, desk)
        python = board.python()
        name = check_name(entry.name or board.facts.host)
        board.entry = entry = replace(entry, name=name)
        if name not in board.facts.servers:
            _see_that_it_is_free(entry)
        desk.say(f"is {board.facts.machine} with Python {python.version[0]}.{python.version[1]}, {python.libc}")
        board.reach(places)
        package = packer.package(entry, board.facts, python, board.host)
        board.install(package, ["--name", name, *flags, f"--name={name}"], DRAIN_S)
        _await(board, wait_s)
        return replace(entry, target=package.target, version=package.name)


def _see_that_it_is_free(entry: Entry) -> None:
    with connect_tracker(parse_address(entry.tracker)) as tracker:
        found = seen.row(tracker.summary(), entry.name)
    if found is not None:
        raise RpcsysError(
            f"the tracker has a server called {entry.name} already, at {found.get('address')}: "
            "give this one another name with --name"
        )


def _await(board: Board, wait_s: float) -> None:
    entry = board.entry
    board.desk.say(f"is awaited at the tracker, {entry.tracker}")
    if not seen.wait(parse_address(entry.tracker), entry.name, entry.key, wait_s):
        said = board.last_words()
        raise RpcsysError(
            f"{entry.name} is installed and not in the tracker at {entry.tracker} after {wait_s:g} s; "
            f"its log ends: {said or '(nothing)'}"
        )


def upgrade(entry: Entry, packer: Packer, desk: Desk, drain_s: float, wait_s: float) -> tuple[Entry, bool]:
    """Put this desk's version in the place of the board's, and wait as `add` does; whether there was anything to do."""
    with connected(entry, desk) as connection:
        board = Board(connection, entry, desk)
        if not board.facts.servers:
            raise RpcsysError(f"nothing is installed on {board.host}: rpcsys board add {entry.destination}")
        python = board.python()
        package = packer.package(entry, board.facts, python, board.host)
        changed = board.facts.version != package.name
        if changed:
            board.install(package, [], drain_s)
        _await(board, wait_s)
        return replace(entry, version=package.name), changed


def remove(entry: Entry, desk: Desk) -> bool:
    """Remove the server from its board; whether there was one."""
    with connected(entry, desk) as connection:
        board = Board(connection, entry, desk)
        if not board.facts.version:
            return False
        board.uninstall()
        return True


def installed(entry: Entry) -> str:
    """The version on the board at this moment, or why it cannot be told."""
    try:
        with connected(entry, Desk()) as connection:
            board = Board(connection, entry, Desk())
            return board.facts.version if entry.name in board.facts.servers else "not installed"
    except ConnectError:
        return "unreachable"
    except RpcsysError:
        return "unknown"
