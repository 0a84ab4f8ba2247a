"""Profiles of models on a device: time for each operator, as a table, as JSON and as a trace for Perfetto."""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rpcsys import notebook
from rpcsys.client import answers
from rpcsys.errors import NotSupported, ProtocolError, UsageError, printable
from rpcsys.wire.checks import number, record, rows, sentence

if TYPE_CHECKING:
    from rpcsys.client.calls import CallFuture
    from rpcsys.wire.frames import Frame

#: Name, type, provider and shapes of an operator.
About = tuple[str, str, str, str]

MAX_BYTES = 64 << 20  # of a profile that is not packed; a server sends no more
_MAX_ROWS = 200_000  # the most runs of operators that a server sends; of operators and of calls there are fewer
_MAX_LISTS = 1_000_000  # opening brackets in its JSON: a list for each of these, and those in texts
_LONGEST = 1e15  # microseconds, thirty years: sums stay finite
_ROUNDED = 0.02  # microseconds by which an operator may seem to begin before the end of the one ahead of it
_PROCESS = 1  # of a trace
_CALLS = 0  # its row of calls
_WIDEST = 60  # characters of a cell


class OperatorRow(NamedTuple):
    """An operator, or those of one type, in all calls of a profile."""

    name: str
    type: str
    provider: str  # what of the runtime ran it, "" where that is not told
    shapes: str  # of its inputs, where they are told
    calls: int
    total_s: float  # seconds in all calls, without operators inside it
    mean_s: float  # seconds of one call of the model
    share: float  # of the calls' time


class ProfiledOperator(NamedTuple):
    """One run of an operator; times in microseconds since the first call."""

    operator: int
    call: int
    thread: int
    begin: float
    duration: float


def submit(module: Any, args: Sequence[Any], name: str, runs: int, warm_up: int) -> CallFuture:
    """Have the device profile a function of a `RemoteModule`; does not wait. Raises `NotSupported`: an older server."""
    session: Any = module._session
    if session.info.get("capabilities", {}).get("profile") is not True:
        raise NotSupported("the server at {}:{} profiles no models; update rpcsys there".format(*session.address))
    target = [module._id, module[name].name]  # raises for a function that it lacks
    fields = {"f": "session.profile", "a": [target, list(args), {"runs": runs, "warm_up": warm_up}]}
    future: CallFuture = session._submit(fields, functools.partial(_told, session._result))
    return future


def _told(result: Callable[[Frame], Any], frame: Frame) -> OperatorProfile:
    return OperatorProfile(unpacked(result(frame)))


class OperatorProfile:
    """Where the time of a model's calls went, as its runtime's own profiler says.

    Attributes
    ----------
    runtime : what ran the model and noted its operators
    calls_s : seconds of each profiled call
    plain_s : mean seconds of a call without the profiler
    rows : a row for each operator (`OperatorRow`), the most expensive first
    outside_s : mean seconds of a call that are in no operator
    """

    def __init__(self, found: dict[str, Any]) -> None:
        """``found``: what a device answers, checked (`unpacked`)."""
        self.runtime: str = _cut(printable(found["runtime"]))
        self.plain_s: float = found["plain_s"]
        self.calls_s: tuple[float, ...] = tuple(duration / 1e6 for _, duration in found["calls"])
        self._calls: list[list[float]] = found["calls"]
        self._operators: list[list[str]] = found["operators"]
        self._runs = sorted((ProfiledOperator(*row) for row in found["runs"]), key=_order)
        self.rows = self._rows(_as_it_is)
        self.outside_s = self.mean_s - sum(row.mean_s for row in self.rows)

    def __repr__(self) -> str:
        return f"<profile of {len(self.rows)} operators in {len(self.calls_s)} calls, {self.runtime}>"

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        heads, cells = _TABLES["op"]
        found = notebook.table(heads, [cells(row, len(self.calls_s)) for row in self.rows])
        return notebook.block("profile", found, notebook.lines(self.table(0).splitlines()[-2:]))

    @property
    def mean_s(self) -> float:
        """Mean seconds of a profiled call."""
        return sum(self.calls_s) / len(self.calls_s)

    def by_type(self) -> list[OperatorRow]:
        """A row for each type of operator, the most expensive first."""
        return self._rows(_type_alone)

    def _rows(self, about: Callable[[Sequence[str]], About]) -> list[OperatorRow]:
        """A row for each result of ``about``, from an operator's name, type, provider and shapes."""
        counts: Counter[About] = Counter()
        totals: dict[About, float] = {}
        for run, own in zip(self._runs, _own_times(self._runs), strict=True):
            key = about(self._operators[run.operator])
            counts[key] += 1
            totals[key] = totals.get(key, 0.0) + own / 1e6
        count, whole = len(self.calls_s), sum(self.calls_s) or 1.0
        made = [OperatorRow(*key, counts[key], total, total / count, total / whole) for key, total in totals.items()]
        return sorted(made, key=lambda row: -row.total_s)

    def table(self, top: int = 20, by: str = "op") -> str:
        """The ``top`` rows for people, ``by`` "op" or "type", and what is outside of all operators.

        Raises `UsageError` for any other ``by``.
        """
        if by not in _TABLES:
            raise UsageError(f"by={by!r}: a table is by 'op' or by 'type'")
        found = self.rows if by == "op" else self.by_type()
        heads, cells = _TABLES[by]
        lines = _aligned([heads, *(cells(row, len(self.calls_s)) for row in found[:top])])
        rest = found[top:]
        if rest:
            share = sum(row.share for row in rest)
            lines.append(f"({len(rest)} more: {_ms(sum(row.mean_s for row in rest))}, {share:.1%})")
        plain = f"{_ms(self.plain_s)} without the profiler"
        lines.append(f"outside operators: {_ms(self.outside_s)}, {self.outside_s / (self.mean_s or 1.0):.1%}")
        lines.append(f"a call: {_ms(self.mean_s)} in {self.runtime}, mean of {len(self.calls_s)} ({plain})")
        return printable("\n".join(lines), "\n")

    def to_json(self) -> dict[str, Any]:
        """All figures, for programs."""
        calls = {"calls_s": list(self.calls_s), "mean_s": self.mean_s, "plain_s": self.plain_s}
        return {
            "runtime": self.runtime, **calls, "outside_s": self.outside_s,
            "operators": [row._asdict() for row in self.rows],
        }  # fmt: skip

    def trace(self) -> dict[str, Any]:
        """The profile in the Trace Event Format: a row of calls, and one for each thread; times in microseconds."""
        threads = {thread: place for place, thread in enumerate(dict.fromkeys(run.thread for run in self._runs), 1)}
        events = [_metadata("process_name", _CALLS, name=self.runtime), _metadata("thread_name", _CALLS, name="calls")]
        events += [_metadata("thread_name", row, name=f"thread {thread}") for thread, row in threads.items()]
        for place, (begin, duration) in enumerate(self._calls):
            events.append(_complete(f"call {place}", "call", _CALLS, begin, duration))
        for run in self._runs:
            name, type_, provider, shapes = self._operators[run.operator]
            about = {"call": run.call, "provider": provider, "inputs": shapes}
            events.append(_complete(name, type_, threads[run.thread], run.begin, run.duration, **about))
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON, for https://ui.perfetto.dev. Raises `UsageError` if that is impossible."""
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(json.dumps(self.trace()))
        except OSError as error:
            raise UsageError(f"{os.fspath(path)} cannot be written: {error.strerror or error}") from None


def _as_it_is(told: Sequence[str]) -> About:
    name, type_, provider, shapes = told
    return name, type_, provider, shapes


def _type_alone(told: Sequence[str]) -> About:
    return told[1], told[1], "", ""


def _order(run: ProfiledOperator) -> tuple[Any, ...]:
    return run.thread, run.begin, -run.duration


def _own_times(runs: Sequence[ProfiledOperator]) -> Iterator[float]:
    """The microseconds of each run, without those of the runs inside it; ``runs`` in `_order`."""
    own = [run.duration for run in runs]
    around: list[int] = []  # the runs that are under way, the innermost last
    for place, run in enumerate(runs):
        while around and not _inside(run, runs[around[-1]]):
            around.pop()
        if around:
            own[around[-1]] = max(own[around[-1]] - run.duration, 0.0)
        around.append(place)
    return iter(own)


def _inside(run: ProfiledOperator, outer: ProfiledOperator) -> bool:
    """Whether a run begins inside an earlier one of its thread."""
    end = outer.begin + outer.duration - _ROUNDED
    return (run.thread, run.call) == (outer.thread, outer.call) and run.begin < end


def _cells_of_operator(row: OperatorRow, calls: int) -> tuple[str, ...]:
    return (row.name or "-", row.type or "-", *_figures(row, calls), row.provider or "-", row.shapes or "-")


def _cells_of_type(row: OperatorRow, calls: int) -> tuple[str, ...]:
    return (row.type or "-", *_figures(row, calls))


def _figures(row: OperatorRow, calls: int) -> tuple[str, ...]:
    return _ms(row.mean_s), f"{row.share:.1%}", f"{row.calls / calls:g}"


_FIGURES = ("A CALL", "SHARE", "RUNS")
#: The heads of a table, and the cells of a row.
_TABLES = {
    "op": (("OPERATOR", "TYPE", *_FIGURES, "BY", "INPUTS"), _cells_of_operator),
    "type": (("TYPE", *_FIGURES), _cells_of_type),
}


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, each column as wide as its widest cell."""
    cut = [[_cut(printable(cell)) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut]


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _metadata(what: str, thread: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": thread, "args": args}


def _complete(name: str, category: str, thread: int, begin: float, duration: float, **args: Any) -> dict[str, Any]:
    span = {"ph": "X", "pid": _PROCESS, "tid": thread, "ts": begin, "dur": duration}
    return {"name": name, "cat": category, **span, "args": args}


# ------------------------------------------------------------------ a device's answer

_FOUND = record(
    runtime=sentence, plain_s=number, calls=rows(rows(number)), operators=rows(rows(sentence)), runs=rows(rows(number))
)


def unpacked(answer: Any) -> dict[str, Any]:
    """A device's profile, checked. Raises `ProtocolError`, before memory is taken for one that is too large."""
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(memoryview(answer), MAX_BYTES)
        if not stream.eof:
            raise ProtocolError(f"the device's profile is broken, or larger than {MAX_BYTES >> 20} MB; take fewer runs")
        if text.count(b"[") + text.count(b"{") > _MAX_LISTS:  # a list of JSON's three bytes takes 70 in memory
            raise ProtocolError("what the device says of a profile makes no sense: it has too many rows")
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError, zlib.error):
        raise ProtocolError("what the device says of a profile makes no sense: it is no packed JSON") from None
    checked: dict[str, Any] = answers.from_device(_FOUND, found, "a profile")
    if not _fits(checked):
        raise ProtocolError("what the device says of a profile makes no sense: its rows do not fit together")
    return checked


def _fits(found: dict[str, Any]) -> bool:
    """Whether each row has its length, points at an operator and a call that there are, and has times in range."""
    operators, calls = len(found["operators"]), len(found["calls"])
    spans = [*(tuple(row) for row in found["calls"]), *(tuple(row[3:]) for row in found["runs"])]
    return (
        0 < calls <= _MAX_ROWS
        and max(operators, len(found["runs"])) <= _MAX_ROWS
        and 0 <= found["plain_s"] <= _LONGEST
        and all(len(row) == 4 for row in found["operators"])
        and all(len(span) == 2 and min(span) >= 0 and max(span) <= _LONGEST for span in spans)
        and all(_points(row[0], operators) and _points(row[1], calls) and type(row[2]) is int for row in found["runs"])
    )


def _points(index: Any, count: int) -> bool:
    return type(index) is int and 0 <= index < count
