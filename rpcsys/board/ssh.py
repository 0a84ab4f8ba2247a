"""One connection to a board, by OpenSSH's own client: its keys, its configuration, its known hosts.

The first process opens the connection and holds it; every command runs through it (ControlMaster), so that a
password is typed once. It lives as long as its standard input is open: when this process ends, however it
ends, the connection does, and with it the folder that was made for it on the board.

Nothing waits for ever: each command has a time, a silent network is noticed in a quarter of a minute, and a
board that talks without end is cut off.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO

from rpcsys.board import trouble
from rpcsys.errors import ConnectError, RpcsysError, UsageError

CONNECT_S = 10
"""For the network's part of opening a connection."""

TYPING_S = 120.0
"""For a person to type a password, or to look at a host key."""

COMMAND_S = 60.0
"""What a command may take that only looks at something; an old board starts Python in seconds."""

MAX_SAID = 1 << 20
"""Bytes that a command may print: ours print a few hundred."""

_SSH_FAILED = 255
_READY = "rpcsys-ready"
"""What stands before an answer: a login shell may print things of its own first."""

#: OpenSSH takes the first value it meets of each option: those that were given come before these.
_DEFAULTS = (f"ConnectTimeout={CONNECT_S}", "ServerAliveInterval=5", "ServerAliveCountMax=3")
_HOLD = f"echo {_READY}; exec cat >/dev/null"
_FOLDER = """
folder=$(mktemp -d "$1/rpcsys.XXXXXX") || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
echo "rpcsys-ready $folder"
cat >/dev/null
"""


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    status: int
    out: str
    err: str


class Connection:
    """A connection to ``destination`` (``user@host``, or a name from ssh's configuration); a context manager.

    ``options`` are ssh's own flags (``-p``, ``-i``, ``-o``, ``-F``, ``-J``). Only if it is ``interactive`` may ssh ask for
    a password or about a host key. Opening raises ConnectError, or UsageError where there is no ssh.
    """

    def __init__(self, destination: str, options: Sequence[str] = (), *, interactive: bool = False) -> None:
        if destination.startswith("-") or not destination.strip():
            raise UsageError(f"{destination!r} is no board: write user@host")
        self.destination = destination
        self.host = destination.rpartition("@")[2]
        self._options = list(options)
        self._interactive = interactive
        self._master: subprocess.Popen[bytes] | None = None
        self._work = ""

    def __enter__(self) -> Connection:
        if shutil.which("ssh") is None:
            raise UsageError("there is no ssh here; type: sudo apt-get install openssh-client")
        # Not in $TMPDIR: the path of a socket has room for about a hundred characters.
        own = os.environ.get("XDG_RUNTIME_DIR", "")
        self._work = tempfile.mkdtemp(prefix="rpcsys-", dir=own if os.access(own, os.W_OK) else "/tmp")
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        mode = ["BatchMode=" + ("no" if self._interactive else "yes"), "ControlMaster=yes", "ControlPersist=no"]
        master = self._spawn(mode, _HOLD, stdin=subprocess.PIPE)
        self._master = master
        said = _listen(master, TYPING_S if self._interactive else 3 * CONNECT_S, until=_READY)
        if said is None:
            raise ConnectError(f"{self.host} does not answer: is it on, and can this machine reach it?")
        if _READY not in said.out:
            raise self._trouble(said.err)

    def _spawn(self, settings: Sequence[str], command: str, stdin: int | IO[bytes]) -> subprocess.Popen[bytes]:
        words = ["ssh", "-T", *self._options]
        for setting in (*settings, *_DEFAULTS, f"ControlPath={self._work}/s"):
            words += ["-o", setting]
        return subprocess.Popen(
            [*words, "--", self.destination, command],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
        )

    def _trouble(self, said: str) -> ConnectError:
        words = shlex.join([*self._options, self.destination])
        port = self._options[self._options.index("-p") + 1] if "-p" in self._options[:-1] else ""
        known = f"'[{self.host}]:{port}'" if port else self.host
        return trouble.of_ssh(said, words, self.host, known)

    def run(self, script: str, *arguments: str, stdin: IO[bytes] | None = None, timeout_s: float = COMMAND_S) -> Said:
        """Run ``script`` by the board's sh, with ``arguments`` as $1 and so on.

        Raises ConnectError if the connection is gone, RpcsysError if it is not done in ``timeout_s`` seconds.
        """
        process = self._spawn(
            ["BatchMode=yes", "ControlMaster=no"], _shell(script, arguments), stdin or subprocess.DEVNULL
        )
        try:
            said = _listen(process, timeout_s)
        finally:
            _end(process)
        if said is None:
            raise RpcsysError(
                f"{self.host} was not done within {timeout_s:g} s; is the board busy, or its disk failing?"
            )
        if said.status == _SSH_FAILED:
            raise self._trouble(said.err)
        return said

    @contextlib.contextmanager
    def folder(self, base: str) -> Iterator[str]:
        """A folder of its own on the board, below ``base``; gone afterwards, or with the connection."""
        process = self._spawn(["BatchMode=yes", "ControlMaster=no"], _shell(_FOLDER, (base,)), stdin=subprocess.PIPE)
        try:
            said = _listen(process, COMMAND_S, until=_READY)
            if said is None or _READY not in said.out:
                raise trouble.of_board(said.err if said else "", self.host, f"making a folder in {base}")
            yield said.out.partition(_READY)[2].splitlines()[0].strip()
        finally:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(COMMAND_S)
            _end(process)

    def close(self) -> None:
        """End the connection."""
        if self._master is not None:
            assert self._master.stdin is not None
            with contextlib.suppress(OSError):
                self._master.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._master.wait(CONNECT_S / 2)
            _end(self._master)
        shutil.rmtree(self._work, ignore_errors=True)


def _shell(script: str, arguments: Sequence[str]) -> str:
    """The command for a login shell of any kind that has ``sh`` run it."""
    return shlex.join(["exec", "sh", "-c", script, "sh", *arguments])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _listen(process: subprocess.Popen[bytes], timeout_s: float, until: str = "") -> Said | None:
    """What ``process`` says until its end, or until a line that begins with ``until`` is whole; None if the time is over.

    Raises RpcsysError if it says more than anything of ours does.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    end = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                return None
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                key.data.extend(data)
                if not data:
                    selector.unregister(key.fileobj)
            if len(out) + len(err) > MAX_SAID:
                raise RpcsysError("the board talks without end; is its shell one for people to work in?")
            if until and b"\n" in out.partition(until.encode())[2]:
                return Said(0, out.decode(errors="replace"), err.decode(errors="replace"))
    try:
        status = process.wait(max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    return Said(status, out.decode(errors="replace"), err.decode(errors="replace"))
