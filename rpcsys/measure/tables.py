"""The results of a bench: a row for each model, board, device and number of threads; in memory and in a file."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rpcsys import notebook
from rpcsys.errors import ProtocolError, UsageError
from rpcsys.intervals import median_interval
from rpcsys.wire import checks

FORM = 1
MAX_BYTES = 64 << 20  # of a file: a thousand cells with ten thousand results each


class Cell(NamedTuple):
    """What was measured: a model on a board."""

    model: str  # the file's name, or its path where two have one name
    board: str  # the server's name
    key: str = ""
    device: str = ""  # of the board, "" for where the model says
    threads: int = 0  # of a call, 0 for as many as the model says

    def __str__(self) -> str:
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return f"{self.model} on {self.board}{f' ({self.device})' if self.device else ''}{threads}"


@dataclass(frozen=True)
class Measured:
    """A cell's results.

    Attributes
    ----------
    blocks : for each session, mean seconds of a call, for each repeat
    runtime : the kind of module that ran it, such as ``"rpcsys.onnx"``
    memory : bytes that the session's process took more with the model loaded and run; None where Linux does not say
    joules : of one call; None where no meter can be read
    warnings : what made results doubtful; one line each. ``doubtful`` sessions had any
    error : why it could not be measured, "" if it was; ``broken``: it came while the model was loaded or ran
    """

    cell: Cell
    blocks: tuple[tuple[float, ...], ...] = ()
    runtime: str = ""
    memory: int | None = None
    joules: float | None = None
    warnings: tuple[str, ...] = ()
    doubtful: int = 0
    error: str = ""
    broken: bool = False

    @property
    def medians(self) -> list[float]:
        """The median seconds of each session."""
        return [statistics.median(block) for block in self.blocks]

    @property
    def median(self) -> float:
        """The median of the sessions' medians, in seconds; not a number without any."""
        return statistics.median(self.medians) if self.blocks else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the median over sessions; None with less than 6 of them."""
        return median_interval(self.medians)


def duration(seconds: float) -> str:
    """Seconds as text, with four digits: ``12.34 ms``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"


#: The columns of a table for people: a heading, and what makes the cell of a row.
COLUMNS: dict[str, Callable[[Measured], str]] = {
    "MODEL": lambda row: row.cell.model,
    "BOARD": lambda row: row.cell.board,
    "RUNTIME": lambda row: row.runtime.removeprefix("rpcsys.") or "-",
    "DEVICE": lambda row: row.cell.device or "-",
    "THREADS": lambda row: str(row.cell.threads or "-"),
    "MEDIAN": lambda row: row.error or duration(row.median),
    "95 %": lambda row: "-" if row.interval is None else " to ".join(map(duration, row.interval)),
    "MEMORY": lambda row: "-" if row.memory is None else f"{row.memory / 1e6:.1f} MB",
    "ENERGY": lambda row: "-" if row.joules is None else f"{row.joules:.3g} J",
    "DOUBTS": lambda row: f"{row.doubtful} of {len(row.blocks)}" if row.doubtful else "-",
}


@dataclass(frozen=True)
class BenchBoard:
    """What is known of a board, and ``pace``: seconds of a call that does nothing, for each session.

    That call runs Python alone, so it shows how fast the board itself was.
    """

    key: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    pace: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class BenchTable:
    """All results of one bench. ``made``: when, in seconds since 1970."""

    rows: tuple[Measured, ...]
    boards: Mapping[str, BenchBoard] = field(default_factory=dict)
    made: float = field(default_factory=time.time)

    def _repr_html_(self) -> str:
        measured = [[show(row) for show in COLUMNS.values()] for row in self.rows if not row.error]
        failed = [f"{row.cell}: not measured: {row.error}" for row in self.rows if row.error]
        doubts = dict.fromkeys(f"warning: {row.cell.board}: {line}" for row in self.rows for line in row.warnings)
        return notebook.block("bench", notebook.table([*COLUMNS], measured), notebook.lines([*failed, *doubts]))

    def row(self, cell: Cell) -> Measured | None:
        """The row of a cell; None if there is none."""
        return next((row for row in self.rows if row.cell == cell), None)

    def to_json(self) -> dict[str, Any]:
        """The object of JSON that `save` writes."""
        rows = [{**asdict(row), "cell": row.cell._asdict()} for row in self.rows]
        boards = {name: asdict(facts) for name, facts in self.boards.items()}
        return {"form": FORM, "made": self.made, "boards": boards, "rows": rows}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a file, whole or not at all. Raises `UsageError` where it cannot be written."""
        new = Path(f"{os.fspath(path)}.{os.getpid()}.part")
        try:
            new.write_text(json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise UsageError(f"{os.fspath(path)} cannot be written: {error.strerror or error}") from None


def load_table(path: str | os.PathLike[str]) -> BenchTable:
    """The table in a file. Raises `UsageError` for a file that cannot be read, or holds none."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}; check the path") from None
    try:
        if len(text) > MAX_BYTES:
            raise ProtocolError(f"it is longer than {MAX_BYTES >> 20} MB")
        return from_json(json.loads(text))
    except (ProtocolError, ValueError, RecursionError) as error:
        why = error if isinstance(error, ProtocolError) else "it is no JSON"
        raise UsageError(f"{name} is no table of rpcsys bench ({why}); make one with --save") from None


def merged_tables(tables: Sequence[BenchTable]) -> BenchTable:
    """One table of several: their sessions together, so that what differs from day to day is in the spread.

    Of rows with an error those that have results remain. Raises `UsageError` for no table.
    """
    if not tables:
        raise UsageError("give at least one table to merge")
    rows: dict[Cell, Measured] = {}
    boards: dict[str, BenchBoard] = {}
    for table in tables:
        for row in table.rows:
            before = rows.get(row.cell)
            if before is None or before.error or row.error:
                rows[row.cell] = before if before is not None and not before.error else row
            else:
                rows[row.cell] = replace(row, blocks=before.blocks + row.blocks)
        for name, facts in table.boards.items():
            known = boards.get(name)
            boards[name] = replace(facts, pace=known.pace + facts.pace) if known else facts
    return BenchTable(tuple(rows.values()), boards, tables[-1].made)


# ------------------------------------------------------------------ a file's fields


def _seconds(value: Any, name: str) -> float:
    found = checks.number(value, name)
    if found < 0:
        raise checks.wrong(name, "seconds", value)
    return float(found)


def _results(value: Any, name: str) -> list[float]:
    found: list[float] = checks.rows(_seconds)(value, name)
    if not found:
        raise checks.wrong(name, "results", value)
    return found


_count = checks.integer(0, checks.MAX_ID)
_blocks = checks.rows(_results)
_CELL = checks.record(
    model=checks.sentence, board=checks.sentence, key=checks.sentence, device=checks.sentence, threads=_count
)
_ROW = checks.record(
    **dict.fromkeys(("runtime", "error"), checks.sentence),
    cell=_CELL, blocks=_blocks, memory=checks.optional(checks.number), joules=checks.optional(checks.number),
    warnings=checks.rows(checks.sentence), doubtful=_count, broken=checks.flag,
)  # fmt: skip
_FACTS = checks.record(
    key=checks.sentence, machine=checks.table(checks.anything), versions=checks.table(checks.sentence), pace=_blocks
)
_TABLE = checks.record(
    form=checks.integer(FORM, FORM), made=checks.seconds, boards=checks.table(_FACTS), rows=checks.rows(_ROW)
)


def from_json(value: Any) -> BenchTable:
    """The table in an object of JSON. Raises `ProtocolError` for any other value."""
    checked = _TABLE(value, "the table")
    rows = tuple(_row(row) for row in checked["rows"])
    if len({row.cell for row in rows}) < len(rows):
        raise ProtocolError("the table has two rows of one cell")
    boards = {
        name: BenchBoard(facts["key"], facts["machine"], facts["versions"], _tuples(facts["pace"]))
        for name, facts in checked["boards"].items()
    }
    return BenchTable(rows, boards, checked["made"])


def _row(fields: Mapping[str, Any]) -> Measured:
    known = {name: fields[name] for name in ("runtime", "memory", "joules", "doubtful", "error", "broken")}
    cell = Cell(**{name: fields["cell"][name] for name in Cell._fields})
    return Measured(cell, _tuples(fields["blocks"]), warnings=tuple(fields["warnings"]), **known)


def _tuples(blocks: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, blocks))
