"""``rpcsys exec``: a program on a board, with this terminal, its signals and its streams; exit statuses as ssh's."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import click

from rpcsys.cli.one_session import of_one_session, opened
from rpcsys.client.processes import RemoteProcess
from rpcsys.errors import ProgramError, RpcsysError, UsageError, one_line
from rpcsys.query import terminal
from rpcsys.query.terminal import at_a_shell

#: The exit status for a program that a signal has ended, and for what is no program's: that of OpenSSH.
NOT_ITS_OWN = 255
#: So many Ctrl-C that the program does not end by end the session, and the program with it.
INSISTS = 3
_FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
_PIECE = 256 << 10
_STDIN, _STDOUT, _STDERR = range(3)


@click.command(
    short_help="Run a program on a board, as ssh would.",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@of_one_session
@click.option("-t", "--terminal", "with_terminal", is_flag=True, help="Give it a terminal on the board.")
@click.option("-n", "--no-stdin", is_flag=True, help="It reads nothing from here.")
@click.option("-e", "--env", "variables", metavar="NAME=VALUE", multiple=True, help="A variable for it; repeatable.")
@click.option("-C", "--chdir", metavar="FOLDER", help="Its folder (default: that of the session's files).")
@click.option(
    "--rsh", is_flag=True, help="Take KEY and a line for a shell, as rsync -e 'rpcsys exec --rsh' gives them."
)
@click.argument("args", metavar="PROGRAM [ARG]...", nargs=-1, type=click.UNPROCESSED, required=True)
def exec(  # noqa: A001 - commands are found by their names
    with_terminal: bool, no_stdin: bool, variables: Sequence[str], chdir: str | None, rsh: bool, args: Sequence[str],
    **where: Any,
) -> int:  # fmt: skip
    """Run PROGRAM on a board. Its streams are this command's, and so is its exit status.

    Signals go to the program. The status is 255 if a signal has ended it, the board could not be reached, or its output
    cannot be written here; 126 if it cannot be started, 127 if there is none of that name. The server needs
    --allow-exec.
    """
    if rsh:
        where["key"], args = args[0].rpartition("@")[2], ["sh", "-c", " ".join(args[1:])]
    environment = dict(map(_variable, variables))
    while os.open(os.devnull, os.O_RDWR) < _STDERR:  # a closed stream's number would be the session's socket's
        pass
    try:
        with opened(**where) as session:
            size = _size() if with_terminal else False
            if with_terminal:
                environment.setdefault("TERM", os.environ.get("TERM", "dumb"))
            process = session.popen(args, terminal=size, cwd=chdir, env=environment)
            with _raw(with_terminal):
                status = _Streams(process, no_stdin).run()
    except (UsageError, ProgramError):
        raise
    except RpcsysError as error:
        click.echo(f"rpcsys: error: {at_a_shell(one_line(error))}", err=True)
        return NOT_ITS_OWN
    if status >= 0:
        return status
    terminal.say(f"rpcsys: the program was ended by {_name(-status)}", err=True)
    return NOT_ITS_OWN


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"-e {text!r}: a variable looks like NAME=VALUE")
    return name, value


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _size() -> tuple[int, int]:
    """Rows and columns of this terminal."""
    for descriptor in (_STDOUT, _STDIN, _STDERR):
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(descriptor)
            if rows and columns:
                return rows, columns
    return 24, 80


@contextlib.contextmanager
def _raw(wanted: bool) -> Iterator[None]:
    """Pass on each key as it is typed, Ctrl-C too; afterwards the terminal is as it was."""
    if not wanted or not os.isatty(_STDIN):
        yield
        return
    before = termios.tcgetattr(_STDIN)
    try:
        tty.setraw(_STDIN)
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)


class _Streams:
    """Joins a program's streams with this process's, and passes on its signals. All of it ends with the program."""

    def __init__(self, process: RemoteProcess, no_stdin: bool) -> None:
        self._process = process
        self._no_stdin = no_stdin
        self._events: SimpleQueue[int | None] = (
            SimpleQueue()
        )  # signals, and None at the end: `put` may interrupt itself
        self._error: BaseException | None = None

    def run(self) -> int:
        """Run until the program has ended and its output is written; its ``returncode``."""
        process = self._process
        before = {number: signal.signal(number, self._note) for number in (*_FORWARDED, signal.SIGWINCH)}
        try:
            outputs = [self._thread(self._copy, process.stdout, _STDOUT)]
            outputs.append(self._thread(self._copy, process.stderr, _STDERR))
            self._thread(self._send_input)
            self._thread(self._wait, outputs)
            self._pass_on()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._error is not None:
            raise self._error
        return process.wait()

    def _thread(self, target: Any, *args: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        return thread

    def _note(self, number: int, _frame: object) -> None:
        self._events.put(number)

    def _pass_on(self) -> None:
        interrupts = 0
        while (number := self._events.get()) is not None:
            if number == signal.SIGWINCH:
                self._process.resize(*_size())
                continue
            interrupts += number == signal.SIGINT
            if interrupts == INSISTS:
                raise KeyboardInterrupt
            self._process.send_signal(number)

    def _wait(self, outputs: Sequence[threading.Thread]) -> None:
        try:
            self._process.wait()
            for each in outputs:
                each.join()
        except RpcsysError as error:
            self._error = error
        self._events.put(None)

    def _send_input(self) -> None:
        stdin = self._process.stdin
        with contextlib.suppress(OSError, ValueError):  # the program reads no more, or there is nothing to read
            while not self._no_stdin and (data := os.read(_STDIN, _PIECE)):
                _write_all(stdin.fileno(), data)
        with contextlib.suppress(OSError):
            stdin.close()

    def _copy(self, source: Any, target: int) -> None:
        """Write all that comes to the descriptor ``target``. If that fails, the program's next write does, too."""
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(source.fileno(), _PIECE):
                try:
                    _write_all(target, data)
                except OSError as error:
                    if not isinstance(error, ConnectionError):  # else nobody reads any more
                        self._error = RpcsysError(f"cannot write what the program prints: {error.strerror}")
                    break
        source.close()


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # another program of this terminal has set it so
            select.select([], [descriptor], [])
