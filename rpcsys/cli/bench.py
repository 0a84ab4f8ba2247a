"""``rpcsys bench``: a table of models and boards, and what became slower since one that was saved."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rpcsys import progress
from rpcsys.cli import options
from rpcsys.client import connect_tracker
from rpcsys.errors import RpcsysError, UsageError
from rpcsys.module import external
from rpcsys.query import terminal
from rpcsys.wire.device_names import MAX_THREADS

if TYPE_CHECKING:
    from rpcsys.measure.benching import BenchPlan
    from rpcsys.measure.regressions import CellVerdict
    from rpcsys.measure.tables import BenchTable, Cell, Measured

_FOUND = 1  # the exit status where something became slower
_COUNT = click.IntRange(1, 1000)


def share(text: str) -> float:
    """A share from percent, with or without the sign. Raises `UsageError`."""
    try:
        found = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        found = -1.0
    if not 0 <= found < 1:
        raise UsageError(f"--least {text!r}: give a share from 0% to less than 100%, such as 2%")
    return found


def numbers_of_threads(text: str) -> list[int]:
    """Numbers of threads with commas between, each once. Raises `UsageError`."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit() and 1 <= int(part[:6]) <= MAX_THREADS):
            how = f"give numbers from 1 to {MAX_THREADS}, such as 1,2,4"
            raise UsageError(f"--threads {text!r}: {part!r} is no number of threads; {how}")
    return list(dict.fromkeys(map(int, parts)))


@click.command(short_help="Measure models on boards: a table, and what became slower.")
@click.option("--key", "keys", multiple=True, help="The kind of boards: a key, repeatable, or all (the default).")
@click.option("--boards", type=click.Choice(["one", "all"]), default="one", show_default=True,
              help="One board of each key, or all of them.")  # fmt: skip
@click.option("--devices", metavar="A,B", default="",
              help="What of each board runs them: cpu, opencl:0, cuda:0 (default: as the model says).")  # fmt: skip
@click.option("--threads", metavar="N,N",
              help="Threads of a call of an ONNX model, each number in turn.")  # fmt: skip
@click.option("--sessions", type=_COUNT, default=6, show_default=True, help="Sessions that measure each cell.")
@click.option("--repeat", type=_COUNT, default=10, show_default=True, help="Results in each session.")
@click.option("--min-repeat-ms", metavar="MS", type=options.Number(0, 600_000), default=10.0, show_default=True,
              help="The shortest time of a result.")  # fmt: skip
@click.option("--save", type=options.FilePath(dir_okay=False), help="Write the results here, as JSON.")
@click.option("--against", type=options.FILE, multiple=True,
              help="Compare with these; exit status 1 if any is slower. Repeatable: of several days.")  # fmt: skip
@click.option("--least", metavar="PERCENT", default="2%", show_default=True,
              help="The least change that counts.")  # fmt: skip
@click.option("--wait-timeout", metavar="SECONDS", type=options.Number(0), default=600.0, show_default=True,
              help="Longest wait for a board.")  # fmt: skip
@click.option("--session-timeout", metavar="SECONDS", type=options.Number(0, min_open=True), default=600.0,
              show_default=True, help="Longest session of one board.")  # fmt: skip
@options.tracker
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each cell, and for each comparison.")
@click.argument("models", metavar="MODEL...", type=options.FILE, nargs=-1, required=True)
def bench(
    keys: Sequence[str], boards: str, save: Path | None, against: Sequence[Path], least: str, tracker: str | None,
    as_json: bool, **how: Any,
) -> int:  # fmt: skip
    """Measure each MODEL on a board of each key: time with its 95 % interval, memory, and energy where a meter is.

    A cell of the table is a model on a board, with a device and a number of threads. What cannot be measured is a row
    that says why.

    With --against FILE the exit status is 1 if a cell became slower than in FILE, beyond the spread of the board's own
    sessions and by more than --least, or no longer runs. Such a cell is measured again first.
    """
    from rpcsys.measure import confirmed, load_table, merged_tables  # the package says what to install for it
    from rpcsys.measure.benching import ALL, boards_of, run

    plan, limit = _plan(**how), share(least)
    if save is not None and not save.parent.is_dir():
        raise UsageError(f"--save {save}: there is no folder {save.parent}")
    base = merged_tables([load_table(path) for path in against]) if against else None
    wanted: str | list[str] = ALL if not keys or ALL in keys else [*keys]
    with connect_tracker(options.tracker_address(tracker)) as connection:
        places = boards_of(connection, wanted, boards, base.boards if base is not None else ())
        with progress.steps() as step:
            table = run(connection, plan, places, step.say, report=step.count)
        _print_table(table, as_json)
        if save is not None:
            table.save(save)
        if all(row.error for row in table.rows):
            raise RpcsysError(f"nothing could be measured: {table.rows[0].error}")
        if base is None:
            return 0

        def again(cells: Collection[Cell]) -> BenchTable:
            with progress.steps() as step:
                step.say(f"measuring {terminal.counted(len(cells), 'cell')} again: slower, or no longer running")
                return run(connection, plan, places, step.say, cells, step.count)

        verdicts = confirmed(base, table, again, limit)
    return _report(verdicts, as_json, against)


def _plan(
    models: Sequence[Path], devices: str, threads: str | None, sessions: int, repeat: int,
    min_repeat_ms: float, session_timeout: float, wait_timeout: float,
) -> BenchPlan:  # fmt: skip
    """What to measure. Raises `UsageError` for a file that is missing, or names one that is."""
    from rpcsys.measure.benching import BenchPlan, checked_devices, named

    for model in models:
        options.check_file(model, "model")
        external.files_of(model)  # raises now, before a board is leased
    counts = [0] if threads is None else numbers_of_threads(threads)
    where = checked_devices([part.strip() for part in devices.split(",")] if devices else [""])
    return BenchPlan(named(models), where, counts, sessions, repeat, min_repeat_ms, session_timeout, wait_timeout)


def _print_table(table: BenchTable, as_json: bool) -> None:
    if as_json:
        for row in table.rows:
            terminal.print_json(_row(row))
        return
    from rpcsys.measure.tables import COLUMNS

    terminal.print_rows([row for row in table.rows if not row.error], COLUMNS)
    for row in table.rows:
        if row.error:
            terminal.say(f"{row.cell}: not measured: {row.error}")
    doubts = dict.fromkeys(f"{row.cell.board}: {line}" for row in table.rows for line in row.warnings)
    for line in doubts:
        terminal.say(f"rpcsys: warning: {line}", err=True)


def _row(row: Measured) -> dict[str, Any]:
    figures = {"median": None if row.error else row.median, "interval": row.interval}
    more = {name: getattr(row, name) for name in ("runtime", "memory", "joules", "doubtful", "error")}
    return {**row.cell._asdict(), **figures, **more, "blocks": row.blocks, "warnings": row.warnings}


def _report(verdicts: Sequence[CellVerdict], as_json: bool, against: Sequence[Path]) -> int:
    """Print what became of each cell; the exit status."""
    from rpcsys.measure.regressions import CellOutcome

    files = ", ".join(map(str, against))
    if not verdicts:
        raise UsageError(f"{files}: none of these models on these boards is in it; save a table with them (--save)")
    for verdict in verdicts:
        if as_json:
            shift = verdict.shift._asdict() if verdict.shift is not None else None
            about = {"outcome": verdict.outcome.name.lower(), "shift": shift, "text": str(verdict)}
            terminal.print_json({**verdict.cell._asdict(), **about})
        else:
            terminal.say(str(verdict))
    if all(verdict.outcome is CellOutcome.UNKNOWN for verdict in verdicts):
        raise RpcsysError(f"nothing could be compared with {files}: {verdicts[0].why}")
    return _FOUND if any(verdict.bad for verdict in verdicts) else 0
