"""``rpcsys compare``: which of several models is faster on a board, and by how much, once that is known."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rpcsys import measure, progress
from rpcsys.cli import options
from rpcsys.cli.run import load_inputs, parse_labels
from rpcsys.client import Session, attaching, connect, connect_tracker
from rpcsys.errors import UsageError
from rpcsys.link import standing_key
from rpcsys.link.address import parse_address
from rpcsys.query import terminal

if TYPE_CHECKING:
    from rpcsys.measure.outcome import ModelComparison

_ALL = "all"


class Percent(click.FloatRange):
    """A number of percent, with or without its sign, as a share."""

    name = "percentage"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The share. Raises click.BadParameter."""
        number: Any = str(value).strip().removesuffix("%").strip()
        return super().convert(number, param, ctx) / 100


class BoardCount(click.IntRange):
    """A number of boards, or all."""

    name = "number of boards"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or "all". Raises click.BadParameter."""
        return _ALL if value == _ALL else super().convert(value, param, ctx)


@click.command(short_help="Say which model is faster, and by how much.")
@click.option("--key", help="The kind of device to lease.")
@click.option("--label", "labels", metavar="K=V", multiple=True,
              help="A label that the device must have; repeatable.")  # fmt: skip
@click.option("--boards", metavar="N|all", type=BoardCount(1, 1000), default="1", show_default=True,
              help="On how many boards of the key.")  # fmt: skip
@click.option("--server", metavar="HOST:PORT", help="Compare on this device server, without a tracker and a lease.")
@click.option("--key-file", type=options.FILE, help="With --server: the file with its key (its --standing-key).")
@options.tracker
@click.option("--wait-timeout", type=options.Number(0), help="Seconds to wait for a device (else no limit).")
@click.option("--least", metavar="PERCENT", type=Percent(0.01, 50), default="1%", show_default=True,
              help="The least difference that matters.")  # fmt: skip
@click.option("--confidence", metavar="PERCENT", type=Percent(50, 99.99), default="95%", show_default=True,
              help="Of the intervals.")  # fmt: skip
@click.option("--limit", metavar="SECONDS", type=options.Number(1), default=60, show_default=True,
              help="The most seconds of measuring.")  # fmt: skip
@click.option("--patience", metavar="SECONDS", type=options.Number(0), default=10, show_default=True,
              help="How long a board that is busy, hot or throttled is waited for.")  # fmt: skip
@click.option("--inputs", metavar="FILE.npz", type=options.FILE, help="The inputs by name (else random ones).")
@click.option("--seed", type=click.IntRange(0), help="Of the order of turns (else any).")
@click.option("--svg", metavar="FILE.svg", type=options.FilePath(dir_okay=False), help="Draw the runs here.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
@click.argument("models", metavar="MODEL MODEL…", nargs=-1, required=True)
def compare(
    key: str | None, labels: Sequence[str], boards: int | str, server: str | None, key_file: Path | None,
    tracker: str | None, wait_timeout: float | None, inputs: Path | None, svg: Path | None, as_json: bool,
    models: Sequence[str], **asked: Any,
) -> None:  # fmt: skip
    """Say which MODEL is faster than the first one, and by how much, as soon as that is known.

    A MODEL is a file (.onnx, .tflite, …) or a library (.so). Settings follow an @: the same model with two devices is
    model.onnx model.onnx@device=opencl:0, a function of a library lib.so@function=NAME, and threads=2 a number of
    threads.

    Runs of the models take turns in a random order. The answer is "B is 3.1 % faster than A (2.4 to 3.8, 95 %)", "no
    difference above 0.5 %", or "this board cannot tell 1 % today", with the reason. Any answer is exit status 0.
    """
    if len(models) < 2:
        raise UsageError("give two models or more: the others are compared with the first")
    wanted = parse_labels(labels)
    if svg is not None:
        _check_picture(svg)
    direct = _direct(server, key, key_file, wanted, boards)
    if direct is None and key is None and not wanted and not attaching.here():
        raise UsageError("give --key, the kind of device to lease (query_tracker lists them), or a --label")
    if key is not None:
        options.check_key(key)
    asked.update(limit_s=asked.pop("limit"), patience_s=asked.pop("patience"))
    asked["inputs"] = load_inputs(inputs) if inputs is not None else None
    measure.check(models, **asked)  # raises now, before a device is leased
    sessions = direct if direct is not None else _leased(tracker, key, boards, wanted, wait_timeout)
    with sessions as found, progress.bar("comparing") as advance:
        comparison = measure.compare(found, models, progress=advance, **asked)
    _report(comparison, svg, as_json)


def _check_picture(path: Path) -> None:
    if path.suffix != ".svg":
        raise UsageError(f"--svg {path}: pictures are written as .svg; type: --svg {path.name}.svg")
    if not path.parent.is_dir():
        raise UsageError(f"--svg {path}: there is no folder {path.parent}")


def _direct(
    server: str | None, key: str | None, key_file: Path | None, labels: dict[str, str], boards: int | str
) -> contextlib.AbstractContextManager[list[Session]] | None:
    """The session with one server, with ``--server``; None without. Raises `UsageError`."""
    if server is None:
        if key_file is not None:
            raise UsageError("--key-file is for one server: say which, with --server HOST:PORT")
        return None
    if labels or boards != 1:
        raise UsageError("--server compares on one device, without a tracker: leave out --label and --boards")
    if key is not None and key_file is not None:
        raise UsageError("--key and --key-file: leave out one; a server with a standing key needs its file")
    parse_address(server)
    found = standing_key.match_key(str(key_file)) if key_file is not None else key or ""
    return _connected(server, found)


@contextlib.contextmanager
def _connected(server: str, key: str) -> Iterator[list[Session]]:
    with connect(server, key=key) as session:
        yield [session]


@contextlib.contextmanager
def _leased(
    tracker: str | None, key: str | None, boards: int | str, labels: dict[str, str], wait_timeout: float | None
) -> Iterator[list[Session]]:
    from rpcsys.measure.leasing import leased

    with connect_tracker(options.tracker_address(tracker)) as connection, contextlib.ExitStack() as stack:
        with progress.steps() as place:
            terms: dict[str, Any] = {"labels": labels, "on_queued": place.say, "wait_timeout": wait_timeout}
            sessions = stack.enter_context(leased(connection, key, boards, **terms))
        yield sessions


def _report(comparison: ModelComparison, svg: Path | None, as_json: bool) -> None:
    from rpcsys.measure import reports

    if svg is not None:
        measure.draw(comparison, svg)
    if as_json:
        terminal.print_json(reports.as_json(comparison))
        return
    terminal.say(str(comparison))
    terminal.say("")
    terminal.print_table(reports.HEAD, reports.rows(comparison, comparison.rules.confidence))
    if svg is not None:
        terminal.say(f"wrote:  {svg}")
