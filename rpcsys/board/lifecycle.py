"""Operations on a board: install, upgrade, remove, query, and wait until the tracker shows it.

Every step has a timeout, and leaves nothing half done: ``install.sh`` activates a checked version in one step.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from rpcsys.board import facts
from rpcsys.board.inventory import Entry, check_name
from rpcsys.board.package import Package, Packer
from rpcsys.board.ssh import SshConnection, board_error
from rpcsys.client import connect_tracker
from rpcsys.errors import ConnectError, RpcsysError
from rpcsys.link.address import parse_tracker
from rpcsys.link.credential import Credential

COPY_TIMEOUT_S = 600.0  # for an archive of some megabytes over a slow link
INSTALL_TIMEOUT_S = 300.0  # for a copy, two syncs and a self-test on a slow SD card
DRAIN_S = 3600.0  # default for running sessions at an upgrade, as in install.sh
REACH_TIMEOUT_S = 10  # for a board to connect to the tracker
EVERY_S = 0.25  # between two polls of the tracker
_COPY = """
cat >"$1/device.tar" && "$2" -c '
import hashlib, sys
with open(sys.argv[1], "rb") as file:
    print("rpcsys-digest " + hashlib.sha256(file.read()).hexdigest())' "$1/device.tar"
"""
_UNPACK = """
cd "$1" && { gzip -dc device.tar 2>/dev/null || xz -dc device.tar; } | tar xf - &&
    rm device.tar && test -f rpcsys-device/install.sh
"""
_REACH = """"$1" -c '
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()
except OSError as error:
    sys.exit(str(error))' "$2" "$3" "$4"
"""
#: sudo may have read its password from standard input, or left it there: what is written begins with a brace.
_PUT = """
mkdir -p "$1" && umask 077 && sed -n '/^{/,$p' >"$2.partial" && test -s "$2.partial" && mv "$2.partial" "$2"
"""
_LOG = """
tail -n 1 "$1/var/log/rpcsys/$2.log" 2>/dev/null ||
    journalctl --quiet --no-pager --lines=1 --output=cat "_SYSTEMD_UNIT=rpcsys-server@$2.service" 2>/dev/null
"""


#: Makes a server, by name and key, a member of the lab; returns its credential.
Enrol = Callable[[str, str], Credential]


@dataclass(frozen=True)
class Terminal:
    """The interaction with the user who runs the command."""

    interactive: bool = False  # whether ssh may prompt the user
    say: Callable[[str], None] = lambda _text: None  # reports progress
    password: Callable[[str], str] | None = None  # prompts for sudo's password


class RemoteBoard:
    """A connected board and its facts. Raises RpcsysError if the board reports none."""

    def __init__(self, connection: SshConnection, entry: Entry, terminal: Terminal) -> None:
        self.connection = connection
        self.entry = entry
        self.terminal = terminal
        self.host = connection.host
        self._password = ""  # sudo's, once it was typed
        self._candidates = (entry.python,) if entry.python else facts.PYTHONS
        self.facts = facts.parse(self._run("reading the facts", facts.SCRIPT, entry.root, *self._candidates))

    def _run(self, doing: str, script: str, *arguments: str, **options: Any) -> str:
        done = self.connection.run(script, *arguments, **options)
        if done.status:
            raise board_error(f"{done.out}\n{done.err}", self.host, doing)
        return done.out

    def python(self) -> facts.Python:
        """The Python for the server. Raises RpcsysError."""
        return facts.python(self.facts, self.host, self._candidates)

    def reach(self, places: Sequence[tuple[str, int]]) -> None:
        """Check that the board can connect to one of these trackers or proxies. Raises RpcsysError."""
        failed = ""
        for host, port in places:
            done = self.connection.run(_REACH, self.python().name, host, str(port), str(REACH_TIMEOUT_S))
            if not done.status:
                return
            failed = f"{host}:{port} ({(done.err.strip().splitlines() or ['no answer'])[-1]})"
        text = f"{self.host} cannot reach the tracker or proxy at {failed}"
        raise RpcsysError(f"{text}: is it running, and is that its address for boards?")

    def install(self, package: Package, flags: Sequence[str], drain_s: float) -> None:
        """Copy ``package`` and run its installer with ``flags``. Raises RpcsysError."""
        base = facts.folder_with_space(self.facts, package.needs, self.host)
        how = facts.rights(self.facts, self.entry.root, self.host)
        with self.connection.folder(base) as folder, package.path.open("rb") as file:
            self.terminal.say(f"copies {package.size / 1e6:.1f} MB")
            copied = self._run("copying", _COPY, folder, self.python().name, stdin=file, timeout_s=COPY_TIMEOUT_S)
            if f"rpcsys-digest {package.digest}" not in copied:
                text = f"{self.host} did not store the bytes that were sent: try again; is its memory or disk failing?"
                raise RpcsysError(text)
            self._run("unpacking", _UNPACK, folder, timeout_s=INSTALL_TIMEOUT_S)
            self.terminal.say(f"installs {package.name}")
            words = ["--drain-timeout", str(int(drain_s)), *flags]
            self._installer(f"{folder}/rpcsys-device/install.sh", words, how, INSTALL_TIMEOUT_S + drain_s)

    def uninstall(self) -> None:
        """Remove this server; with the board's last server remove all of rpcsys. Raises RpcsysError."""
        how = facts.rights(self.facts, self.entry.root, self.host)
        script = f"{self.entry.root}/opt/rpcsys/current/install.sh"
        self._installer(script, ["--uninstall", "--name", self.entry.name], how, INSTALL_TIMEOUT_S)

    @property
    def credential_path(self) -> str:
        """Where the server's credential for a lab is."""
        return f"{self.entry.root}/etc/rpcsys/{self.entry.name}.lab.json"

    def flags(self) -> list[str]:
        """The server's flags. Raises RpcsysError."""
        text = self._run("reading the flags", 'cat "$1"', f"{self.entry.root}/etc/rpcsys/{self.entry.name}.flags")
        return [word for word in text.splitlines() if word and not word.startswith("#")]

    def put_credential(self, own: Credential) -> None:
        """Write the server's credential, which its owner alone may read. It travels inside ssh. Raises RpcsysError."""
        self.terminal.say("gets its credential")
        words = ["sh", "-c", _PUT, "sh", os.path.dirname(self.credential_path), self.credential_path]
        how = facts.rights(self.facts, self.entry.root, self.host)
        self._as_root(words, how, "writing the credential", INSTALL_TIMEOUT_S, own.text())

    def _installer(self, script: str, flags: Sequence[str], how: str, timeout_s: float) -> None:
        words = ["sh", script, *flags, *(["--root", self.entry.root] if self.entry.root else [])]
        python = self.python().name
        if python != "python3":
            words = ["env", f"RPCSYS_PYTHON={python}", *words]
        self._as_root(words, how, "install.sh", timeout_s)

    def _as_root(self, words: list[str], how: str, doing: str, timeout_s: float, text: str = "") -> None:
        """Run a command with the rights to install, and ``text`` on its standard input. Raises RpcsysError."""
        typed = ""
        if how == "sudo":
            words = ["sudo", "-n", *words]
        elif how == "password":
            words = ["sudo", "-S", "-p", "", *words]
            if self.terminal.password is None:
                raise RpcsysError(
                    f"sudo on {self.host} asks for a password: type this at a terminal, or connect as root"
                )
            self._password = typed = self._password or self.terminal.password(
                f"Password for sudo on {self.connection.destination}"
            )
        with _typed(f"{typed}\n{text}") as stdin:
            self._run(doing, 'exec "$@"', *words, stdin=stdin, timeout_s=timeout_s)

    def await_server(self, timeout_s: float) -> None:
        """Wait until the tracker shows the server. Raises RpcsysError with the last line of its log, if it does not."""
        entry = self.entry
        self.terminal.say(f"is installed; waiting until the tracker at {entry.tracker} shows it")
        if not wait(parse_tracker(entry.tracker), entry.name, entry.key, timeout_s):
            log = self.connection.run(_LOG, entry.root, entry.name).out.strip()[-300:]
            text = f"{entry.name} is installed and not in the tracker at {entry.tracker} after {timeout_s:g} s"
            raise RpcsysError(f"{text}; its log ends: {log or '(nothing)'}")


def _typed(text: str) -> IO[bytes]:
    """A file in memory that holds the text a user would type; nothing is written to disk."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as stream:
        stream.write(text.encode())
    return os.fdopen(reading, "rb")


@contextlib.contextmanager
def _connected(entry: Entry, terminal: Terminal) -> Iterator[RemoteBoard]:
    with SshConnection(entry.destination, entry.options, interactive=terminal.interactive) as connection:
        yield RemoteBoard(connection, entry, terminal)


def add(
    entry: Entry, flags: Sequence[str], places: Sequence[tuple[str, int]],
    packer: Packer, terminal: Terminal, wait_s: float, enrol: Enrol | None = None,
) -> Entry:  # fmt: skip
    """Install a server and wait until the tracker shows it; returns its entry for the inventory.

    ``entry.name`` may be empty for the board's own name. ``flags`` are the server's, ``places`` the addresses that it
    will connect to: the board must reach one of them. ``enrol``: for a tracker with a lab. Raises RpcsysError.
    """
    with _connected(entry, terminal) as board:
        python = board.python()
        name = check_name(entry.name or board.facts.host)
        board.entry = entry = replace(entry, name=name)
        if name not in board.facts.servers:
            _check_unused(entry)
        terminal.say(f"is {board.facts.machine} with Python {python.version[0]}.{python.version[1]}, {python.libc}")
        board.reach(places)
        package = packer.package(entry, board.facts, python, board.host)
        if enrol is not None:
            before = board.flags() if name in board.facts.servers else []
            if not (_value(before, "--lab") and _value(before, "--key") == entry.key):
                board.put_credential(enrol(name, entry.key))
            flags = [*flags, "--lab", board.credential_path]
        board.install(package, ["--name", name, *flags, f"--name={name}"], DRAIN_S)
        board.await_server(wait_s)
        return replace(entry, target=package.target, version=package.name)


def _value(flags: Sequence[str], name: str) -> str:
    """The value behind the flag ``name``; empty if it is not there."""
    return next((value for flag, value in itertools.pairwise(flags) if flag == name), "")


def _check_unused(entry: Entry) -> None:
    with connect_tracker(parse_tracker(entry.tracker)) as tracker:
        found = row(tracker.summary(), entry.name)
    if found is not None:
        text = f"the tracker has a server called {entry.name} already, at {found.get('address')}"
        raise RpcsysError(f"{text}: give this one another name with --name")


def upgrade(entry: Entry, packer: Packer, terminal: Terminal, drain_s: float, wait_s: float) -> tuple[Entry, bool]:
    """Replace the board's version by this machine's, and wait as `add` does; returns whether it had to."""
    with _connected(entry, terminal) as board:
        if not board.facts.servers:
            raise RpcsysError(f"nothing is installed on {board.host}: rpcsys board add {entry.destination}")
        package = packer.package(entry, board.facts, board.python(), board.host)
        changed = board.facts.version != package.name
        if changed:
            board.install(package, [], drain_s)
        board.await_server(wait_s)
        return replace(entry, version=package.name), changed


def secure(
    entry: Entry, packer: Packer, terminal: Terminal, drain_s: float, wait_s: float, enrol: Enrol, *, anew: bool = False
) -> tuple[Entry, bool]:
    """Give a server that is there its credential, and start it with it; returns whether it had none.

    Its running sessions end first, as at an upgrade. ``anew``: also one that has a credential.
    """
    with _connected(entry, terminal) as board:
        if entry.name not in board.facts.servers:
            raise RpcsysError(f"{entry.name} is not installed on {board.host}: rpcsys board add {entry.destination}")
        flags = board.flags()
        if _value(flags, "--lab") and not anew:
            return entry, False
        package = packer.package(entry, board.facts, board.python(), board.host)
        board.put_credential(enrol(entry.name, entry.key))
        if "--lab" in flags:
            at = flags.index("--lab")
            del flags[at : at + 2]
        board.install(package, ["--name", entry.name, *flags, "--lab", board.credential_path], drain_s)
        board.await_server(wait_s)
        return replace(entry, target=package.target, version=package.name), True


def remove(entry: Entry, terminal: Terminal) -> bool:
    """Remove the server from its board; returns whether there was one."""
    with _connected(entry, terminal) as board:
        if board.facts.version:
            board.uninstall()
        return bool(board.facts.version)


def installed(entry: Entry) -> str:
    """The version that is installed on the board now, or why it is unknown."""
    try:
        with _connected(entry, Terminal()) as board:
            return board.facts.version if entry.name in board.facts.servers else "not installed"
    except ConnectError:
        return "unreachable"
    except RpcsysError:
        return "unknown"


# Reading the tracker's summary


def row(summary: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The tracker's row of the server ``name``; None if there is none, or if the tracker does not send names."""
    for server in summary.get("servers", []):
        own = server.get("labels", {}).get("name") or str(server.get("name", "")).rpartition(":")[0]
        if own == name:
            return dict(server)
    return None


def shown(summary: Mapping[str, Any], name: str, key: str) -> bool:
    """Whether the tracker shows the server: by name, or by key if the tracker does not send names."""
    if "servers" in summary:
        return row(summary, name) is not None
    return any(str(server.get("key")) == f"server:{key}" for server in summary.get("server_info", []))


def state(summary: Mapping[str, Any], name: str) -> str:
    """The server's state in a few words."""
    found = row(summary, name)
    if found is None:
        return "not in the tracker"
    if found.get("state") not in (None, "ok"):
        return ": ".join(filter(None, (str(found["state"]), str(found.get("reason") or ""))))
    if found.get("free"):
        return f"serves, {found['free']} of {found.get('slots', 0)} free"
    return f"serves, {found.get('running', 0)} of {found.get('slots', 0)} leased"


def wait(address: tuple[str, int], name: str, key: str, timeout_s: float) -> bool:
    """Whether the tracker shows the server within ``timeout_s`` seconds; the tracker may be away meanwhile."""
    end = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(ConnectError), connect_tracker(address) as tracker:  # the tracker may come back
            if shown(tracker.summary(), name, key):
                return True
        if time.monotonic() > end:
            return False
        time.sleep(EVERY_S)
