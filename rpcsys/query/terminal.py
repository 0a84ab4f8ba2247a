"""How commands run and print: exit statuses, tables, JSON. Control characters never reach the terminal.

Results go to standard output; progress (`rpcsys.progress`) goes to standard error.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from rpcsys.errors import Interrupted, ProtocolError, RpcsysError, one_line, printable
from rpcsys.wire import tokens

if TYPE_CHECKING:
    import numpy as np

_SHOWN = 4  # items of a list, a dict or an array of strings that a line shows
MAX_WIDTH = 256  # of a column; a longer cell exceeds it, so that one long name does not widen every row

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

HELP = {"help_option_names": ["-h", "--help"]}  # settings of a group, which its commands inherit

#: Advice for Python programs in errors, which trackers and devices send too, and what replaces it at a shell.
_ADVICE = (
    (", or wait for it with wait_for_key=True", ""),
    ("wait longer with timeout=…, or lease", "lease"),
    ("load_module(..., allow_pickle=True), or ", ""),
    ("; see session.listdir()", ""),
    (". See session.info['capabilities']", ""),
    ("a longer session_timeout", "more time"),
    ("or check the address", "or give its address: --tracker HOST:PORT, or RPCSYS_TRACKER"),
)

INTERRUPTED, TERMINATED = 130, 143  # a shell's exit statuses for commands that Ctrl-C and SIGTERM ended


def run_command(command: click.Command, name: str, arguments: Sequence[str] | None) -> int:
    """Run a command with ``arguments`` (None: the process's own); return its exit status.

    Every error becomes one line on standard error. SIGTERM ends a command as Ctrl-C does: it removes its files.
    """
    for stream in _streams():
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # characters that the terminal's encoding lacks
    with contextlib.redirect_stderr(_Unfailing(sys.stderr)):
        return _run(command, name, arguments)


def _run(command: click.Command, name: str, arguments: Sequence[str] | None) -> int:
    try:
        tokens.refuse_visible(sys.argv[1:] if arguments is None else arguments)
        with _terminable():
            status = command.main(arguments, name, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except _Terminated as ended:
        click.echo(f"{name}: terminated{_left_by(ended)}", err=True)
        return TERMINATED
    except (click.Abort, KeyboardInterrupt) as ended:
        click.echo(f"{name}: interrupted{_left_by(ended)}", err=True)
        return INTERRUPTED
    except click.UsageError as error:
        return _fail(name, _of_usage(name, error), error.exit_code)
    except click.ClickException as error:
        return _fail(name, error.format_message(), error.exit_code)
    except RpcsysError as error:
        return fail_with(error, name)
    except BrokenPipeError:  # the reader of the output has ended: `rpcsys run … | head -1`
        _give_up(sys.stdout)
        return 0
    except OSError as error:
        _give_up(sys.stdout)
        return _fail(name, _of_system(error), RpcsysError.exit_status)
    return status if isinstance(status, int) else 0


def _of_usage(name: str, error: click.UsageError) -> str:
    """A wrong command line for people; for an option that resembles none, with the words that the command needs."""
    text, context = error.format_message().rstrip("."), error.ctx
    if context is None:
        return f"{text} (see {name} --help)"
    if isinstance(error, click.NoSuchOption) and not error.possibilities:
        needed = [param for param in context.command.params if param.required]
        words = [param.get_usage_pieces(context) or [param.opts[0], param.metavar or "…"] for param in needed]
        if words:
            text += f"; type: {' '.join([context.command_path, *itertools.chain(*words)])}"
    return f"{text} (see {context.command_path} --help)"


def _streams() -> tuple[TextIO, TextIO]:
    """Standard output and standard error; what the caller has closed (``>&-``) goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the rest of the process
    return sys.stdout, sys.stderr


class _Unfailing:
    """Standard error, whose texts are dropped once it cannot take one: no command's work ends for what it tells."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            _give_up(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            _give_up(self._stream)


def _give_up(stream: TextIO) -> None:
    """Drop what a stream cannot take: the interpreter's flush at the end must not fail, too."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())  # a test's output has no descriptor


def _of_system(error: OSError) -> str:
    """An error of the operating system for people: where it came from, and what to do."""
    if error.filename is not None:
        return f"{printable(str(error.filename))}: {error.strerror}"
    try:
        os.getcwd()
    except OSError:
        return "the folder in which this command runs is gone: cd to another, and type it again"
    why = error.strerror or str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return why
    return f"the output cannot be written: {why}; free some space, or write it elsewhere"


class _Terminated(Exception):
    """SIGTERM came, and the command has ended."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Raise KeyboardInterrupt in the command at the first SIGTERM, and `_Terminated` behind it; a second one kills."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    came: list[int] = []

    def end(number: int, _frame: object) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException as error:
        if came:
            raise _Terminated from error
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _fail(name: str, message: str, status: int) -> int:
    click.echo(f"{name}: error: {' '.join(message.split())}", err=True)
    return status


def _left_by(ended: BaseException | None) -> str:
    """What an interrupted change may still do, or nothing: click and SIGTERM wrap its error."""
    while ended is not None and not isinstance(ended, Interrupted):
        ended = ended.__cause__
    return "" if ended is None else f": {one_line(ended)}"


def fail_with(error: RpcsysError, name: str, where: str = "") -> int:
    """Print the line of an error of the command ``name``; return its exit status."""
    return _fail(name, where + at_a_shell(one_line(error)), error.exit_status)


def at_a_shell(text: str) -> str:
    """An error without its advice for Python programs, which does not help at a shell."""
    for python, shell in _ADVICE:
        text = text.replace(python, shell)
    return text


def with_options(*options: Decorator) -> Decorator:
    """One decorator for several options, in the order of the help."""

    def decorate(callback: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            callback = option(callback)
        return callback

    return decorate


def say(text: str, *, err: bool = False) -> None:
    """Print lines that may contain texts of peers, without control characters."""
    click.echo(printable(text, "\n"), err=err)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a heading and rows in aligned columns."""
    table = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [min(MAX_WIDTH, max(len(row[column]) for row in table)) for column in range(len(head))]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


#: By a column's heading, the item's field in that column, or a function that makes the cell.
Columns = Mapping[str, str | Callable[[Any], str]]


def print_rows(items: Iterable[Any], columns: Columns, as_json: bool = False) -> None:
    """Print a table with a row for each item, or a line of JSON for each."""
    if as_json:
        for item in items:
            print_json(item)
    else:
        print_table([*columns], [[_cell(item, column) for column in columns.values()] for item in items])


def _cell(item: Any, column: str | Callable[[Any], str]) -> str:
    return str(item[column]) if isinstance(column, str) else column(item)


def print_json(value: Any) -> None:
    """Print a line of JSON. Raises `ProtocolError` for a value that JSON does not have, such as infinity."""
    try:
        click.echo(json.dumps(value, allow_nan=False))
    except ValueError as error:
        raise ProtocolError(f"what the lab answers has no form in JSON: {error}") from None


def counted(count: int, noun: str) -> str:
    """``1 client`` or ``2 clients``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def span(seconds: float) -> str:
    """A duration as text: ``2.5s``, ``3m20s`` or ``1d02h``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 24 else f"{hours // 24}d{hours % 24:02d}h"


def who(user: str, address: str) -> str:
    """``user@address``, or the address alone for a user without a name."""
    return user if not address or user == address else f"{user}@{address}"


def print_heading(text: str) -> None:
    """Print an empty line and a heading."""
    click.echo()
    click.secho(text, bold=True)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values in aligned columns."""
    shown = [(printable(name), printable(value)) for name, value in pairs]
    width = min(MAX_WIDTH, max((len(name) for name, _ in shown), default=0))
    for name, value in shown:
        click.echo(f"  {name:<{width}}  {value}")


def print_indented(text: str) -> None:
    """Print a text of another program, indented."""
    for line in text.strip("\n").splitlines():
        click.echo(f"  {printable(line)}".rstrip())


def array_text(value: np.ndarray[Any, Any]) -> str:
    """An array's type and shape, and the least, mean and largest of its numbers."""
    text = f"{value.dtype} {list(value.shape)}"
    if value.size and value.dtype.kind in "fiu":
        text += f"  min {value.min():.4g}  mean {value.mean():.4g}  max {value.max():.4g}"
    return text


def value_text(value: Any) -> str:
    """An array, string, number, list or dict as one line: large ones by their size and their first items."""
    if isinstance(value, str):  # numpy's strings have a dtype, too
        return value[:MAX_WIDTH]
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        if getattr(value.dtype, "kind", "") in "OUST" and hasattr(value, "flat"):
            return f"strings {list(value.shape)}{_first([*value.flat[:_SHOWN]], value.size)}"
        return array_text(value) if hasattr(value, "min") else f"{value.dtype} {list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"list of {len(value)}{_first(value[:_SHOWN], len(value))}"
    if isinstance(value, dict):
        items = [f"{key}: {value_text(item)}" for key, item in itertools.islice(value.items(), _SHOWN)]
        return f"{{{', '.join(items)}{', …' if len(value) > _SHOWN else ''}}}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:MAX_WIDTH]


def _first(items: Sequence[Any], count: int) -> str:
    shown = ", ".join(map(value_text, items))
    return f"  {shown}{', …' if count > len(items) else ''}" if shown else ""


def megabytes(count: int) -> str:
    """Bytes as MB (10^6)."""
    return f"{count / 1e6:.1f} MB"
