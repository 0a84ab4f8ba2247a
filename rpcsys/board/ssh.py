"""One connection to a board through OpenSSH's client: its keys, its configuration, its known hosts.

Each command has a timeout; a silent network is detected after 15 seconds; endless output is cut off.
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
from typing import IO, NamedTuple

from rpcsys.errors import ConnectError, RpcsysError, UsageError

CONNECT_S = 10  # for the network's part of opening a connection
TYPING_S = 120.0  # for the user to type a password, or to check a host key
COMMAND_S = 60.0  # for a command that only reads; an old board takes seconds to start Python
MAX_OUTPUT = 1 << 20  # the most bytes of output of a command: rpcsys's commands print a few hundred
_SSH_FAILED = 255
_READY = "rpcsys-ready"  # prefix of an answer: a login shell may print other lines first
#: OpenSSH uses the first value of each option: the user's options come before these.
_DEFAULTS = (f"ConnectTimeout={CONNECT_S}", "ServerAliveInterval=5", "ServerAliveCountMax=3")
_THROUGH_MASTER = ("BatchMode=yes", "ControlMaster=no")
_HOLD = f"echo {_READY}; exec cat >/dev/null"
_FOLDER = """
folder=$(mktemp -d "$1/rpcsys.XXXXXX") || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
echo "rpcsys-ready $folder"
cat >/dev/null
"""


class Output(NamedTuple):
    """A command's output and exit status."""

    status: int
    out: str
    err: str


class SshConnection:
    """A connection to ``destination`` (``user@host``, or a name from ssh's configuration); a context manager.

    Its first process, the master, holds it open. Every command runs through it (ControlMaster), so a password is typed
    once. When this process ends for any reason, so does the connection, and its folder on the board is deleted.

    ``options`` are ssh's own flags. Only if it is ``interactive`` may ssh prompt for a password or about a host key.
    Opening raises ConnectError, or UsageError if ssh is missing.
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

    def __enter__(self) -> SshConnection:
        if shutil.which("ssh") is None:
            raise UsageError("there is no ssh here; type: sudo apt-get install openssh-client")
        # Not in $TMPDIR: the path of a socket is limited to about a hundred characters.
        own = os.environ.get("XDG_RUNTIME_DIR", "")
        self._work = tempfile.mkdtemp(prefix="rpcsys-", dir=own if os.access(own, os.W_OK) else "/tmp")
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        mode = ["BatchMode=" + ("no" if self._interactive else "yes"), "ControlMaster=yes", "ControlPersist=no"]
        self._master = self._spawn(mode, _HOLD, stdin=subprocess.PIPE)
        said = _listen(self._master, TYPING_S if self._interactive else 3 * CONNECT_S, until=_READY)
        if said is None:
            raise ConnectError(_SILENT.format(host=self.host))
        if _READY not in said.out:
            raise self._error(said.err)

    def _spawn(self, settings: Sequence[str], command: str, stdin: int | IO[bytes]) -> subprocess.Popen[bytes]:
        settings = [f"-o{setting}" for setting in (*settings, *_DEFAULTS, f"ControlPath={self._work}/s")]
        words = ["ssh", "-T", *self._options, *settings, "--", self.destination, command]
        english = {**os.environ, "LC_ALL": "C"}
        return subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=english)

    def _error(self, said: str) -> ConnectError:
        words = shlex.join([*self._options, self.destination])
        port = self._options[self._options.index("-p") + 1] if "-p" in self._options[:-1] else ""
        known = f"'[{self.host}]:{port}'" if port else self.host
        return ssh_error(said, words, self.host, known)

    def run(self, script: str, *arguments: str, stdin: IO[bytes] | None = None, timeout_s: float = COMMAND_S) -> Output:
        """Run ``script`` with the board's sh, with ``arguments`` as $1 and so on.

        Raises ConnectError if the connection is lost, RpcsysError if it takes more than ``timeout_s`` seconds.
        """
        process = self._spawn(_THROUGH_MASTER, _shell(script, arguments), stdin or subprocess.DEVNULL)
        try:
            said = _listen(process, timeout_s)
        finally:
            _end(process)
        if said is None:
            text = f"{self.host} was not done within {timeout_s:g} s; is the board busy, or its disk failing?"
            raise RpcsysError(text)
        if said.status == _SSH_FAILED:
            raise self._error(said.err)
        return said

    @contextlib.contextmanager
    def folder(self, base: str) -> Iterator[str]:
        """A new folder on the board, below ``base``; deleted at the end, or with the connection."""
        process = self._spawn(_THROUGH_MASTER, _shell(_FOLDER, (base,)), stdin=subprocess.PIPE)
        try:
            said = _listen(process, COMMAND_S, until=_READY)
            if said is None or _READY not in said.out:
                raise board_error(said.err if said else "", self.host, f"making a folder in {base}")
            yield said.out.partition(_READY)[2].splitlines()[0].strip()
        finally:
            _end(process, COMMAND_S)

    def close(self) -> None:
        """End the connection."""
        if self._master is not None:
            _end(self._master, CONNECT_S / 2)
        shutil.rmtree(self._work, ignore_errors=True)


def _shell(script: str, arguments: Sequence[str]) -> str:
    """The command with which a login shell of any kind runs the script in ``sh``."""
    return shlex.join(["exec", "sh", "-c", script, "sh", *arguments])


def _end(process: subprocess.Popen[bytes], by_itself_s: float = 0.0) -> None:
    """End a process: by closing its input, and after a timeout by a signal."""
    if by_itself_s and process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(by_itself_s)
    process.kill()
    process.wait()
    for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
        with contextlib.suppress(OSError):
            stream.close()


def _listen(process: subprocess.Popen[bytes], timeout_s: float, until: str = "") -> Output | None:
    """Read what ``process`` prints until its end, or up to a line with ``until``; None after the timeout.

    Raises RpcsysError if it prints more than MAX_OUTPUT bytes.
    """
    out, err = bytearray(), bytearray()
    end = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for stream, heard in ((process.stdout, out), (process.stderr, err)):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, heard)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                return None
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                key.data.extend(data)
                if not data:
                    selector.unregister(key.fileobj)
            if len(out) + len(err) > MAX_OUTPUT:
                raise RpcsysError("the board's output does not end; is its login shell an interactive program?")
            if until and b"\n" in out.partition(until.encode())[2]:
                return Output(0, out.decode(errors="replace"), err.decode(errors="replace"))
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(max(1.0, end - time.monotonic()))
        return Output(status, out.decode(errors="replace"), err.decode(errors="replace"))
    return None


# Errors: the output of ssh or a board -> one line that tells the user what to do.

_SILENT = "{host} does not answer: is it on, and can this machine reach it?"
#: OpenSSH's messages (in English only) -> their explanations. {to}: the arguments of ssh. The first match counts.
_MEANINGS = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": "the host key of {host} is not the one it had: a new system on the "
    "board, or another machine in its place; if it is the board's, type: ssh-keygen -R {known}, and: ssh {to}",
    "Host key verification failed": "the host key of {host} is unknown: type: ssh {to}, compare it and accept it "
    "(or, on a network you trust: -o StrictHostKeyChecking=accept-new)",
    "Permission denied": "{host} refuses these credentials (permission denied): type: ssh-copy-id {to}, or "
    "name a key with -i, or another user",
    "Too many authentication failures": "{host} was offered too many keys: name the one with -i and "
    "-o IdentitiesOnly=yes",
    "Could not resolve hostname": "there is no host called {host}: is the name right? An address will do, too",
    "Bad port": "{host}: give ssh a port from 1 to 65535 (-p)",
    "open user config file": "there is no such file of settings for ssh (-F): check the path",
    "Connection refused": "{host} refuses ssh: is sshd running there, and on this port (-p)?",
    "not responding": "{host} has stopped answering: is it still on?",
    "timed out": _SILENT,
    "No route to host": _SILENT,
    "Network is unreachable": "this machine has no route to the network of {host}",
    "no matching host key type": "{host} offers only old kinds of host keys: -o HostKeyAlgorithms=+ssh-rsa",
    "no matching key exchange": "{host} offers only old kinds of key exchange: "
    "-o KexAlgorithms=+diffie-hellman-group14-sha1",
}


def ssh_error(said: str, words: str, host: str, known: str) -> ConnectError:
    """The error for ssh's standard error.

    ``words`` are the arguments with which to try ssh by hand, ``known`` is the host's name among the known hosts.
    """
    for sign, meaning in _MEANINGS.items():
        if sign in said:
            return ConnectError(meaning.format(to=words, host=host, known=known))
    return ConnectError(f"the connection to {host} broke: {_last_line(said) or 'ssh printed nothing'}")


def board_error(said: str, host: str, doing: str) -> RpcsysError:
    """The error for the output of a command on the board; ``doing`` is the command's purpose."""
    if "No space left on device" in said:
        return RpcsysError(f"{host} has no space left ({doing}): see: df -h; the old version, if any, is as it was")
    broken = [" ".join(line.split()[1:]) for line in said.splitlines() if line.startswith("broken ")]
    if broken:
        return RpcsysError(f"{host} cannot serve: {'; '.join(broken)}")
    if "incorrect password" in said or "Sorry, try again" in said:
        return RpcsysError(f"sudo on {host} does not take this password")
    if "is not in the sudoers file" in said or "may not run sudo" in said:
        return RpcsysError(f"this user may not use sudo on {host}: connect as root, or as one who may")
    return RpcsysError(f"{doing} on {host} failed: {_last_line(said) or 'it printed nothing'}")


def _last_line(said: str) -> str:
    line = said.strip().rpartition("\n")[2].strip()
    return line.removeprefix("install.sh: error: ").removeprefix("rpcsys: error: ")[:300]
