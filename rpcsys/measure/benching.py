"""Measures each model on each board, with each device and number of threads, in several sessions spread over the run.

A board has a thread here and measures one model at a time. Boards work side by side, those of one machine in turn. The
failure of a model or a board is a row that says why; the others go on.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rpcsys.client import RemoteModule, Session, Tracker, connect_tracker
from rpcsys.client.timing import TimingResult, timing_of
from rpcsys.errors import (
    NotSupported,
    RemoteError,
    RemoteFunctionError,
    RpcsysError,
    SessionError,
    UnknownKey,
    UsageError,
    one_line,
)
from rpcsys.graph import samples
from rpcsys.measure.tables import BenchBoard, BenchTable, Cell, Measured
from rpcsys.progress import Advance, reporting
from rpcsys.wire import device_names

if TYPE_CHECKING:
    from rpcsys.client.rows import ServerRow
    from rpcsys.client.tracker import Address

ALL = "all"
SEED = 0
SESSIONS = 6  # the fewest whose medians have a 95 % interval
REPEAT = 10
MIN_REPEAT_MS = 10.0
SESSION_S = 600.0  # longest session: a model that hangs ends with it
WAIT_S = 600.0  # for a board that others use
_PACE = {"number": 500, "repeat": 5, "min_repeat_ms": 2.0}  # of a call that does nothing, in each session

Say = Callable[[str], object]


class BoardPlan(NamedTuple):
    """A board to measure on; ``name`` is "" where no board of the key can be leased, for the reason ``why``."""

    key: str
    name: str
    why: str = ""


@dataclass(frozen=True)
class BenchPlan:
    """What to measure, and how.

    Attributes
    ----------
    models : the files, by the names that their rows have
    devices, threads : of each model; "" and 0 for what the model says
    sessions : in which each cell is measured; ``repeat`` results in each, of ``min_repeat_ms`` at least
    session_s, wait_s : longest session, and longest wait for a board
    """

    models: Mapping[str, Path]
    devices: Sequence[str] = ("",)
    threads: Sequence[int] = (0,)
    sessions: int = SESSIONS
    repeat: int = REPEAT
    min_repeat_ms: float = MIN_REPEAT_MS
    session_s: float = SESSION_S
    wait_s: float = WAIT_S

    def cells(self, board: BoardPlan) -> list[Cell]:
        """The cells of a board."""
        how = [(model, device, count) for model in self.models for device in self.devices for count in self.threads]
        return [Cell(model, board.name or board.key, board.key, device, count) for model, device, count in how]


def bench(
    models: Sequence[str | Path],
    key: str | Sequence[str] = ALL,
    *,
    tracker: Tracker | Address = None,
    boards: str = "one",
    devices: Sequence[str] = ("",),
    threads: Sequence[int] = (0,),
    sessions: int = SESSIONS,
    repeat: int = REPEAT,
    min_repeat_ms: float = MIN_REPEAT_MS,
    say: Say = lambda line: None,
    progress: Advance | bool | None = None,
) -> BenchTable:
    """Measure each of ``models`` (files) on the boards of ``key``, or of each of several, or of each that there is.

    ``boards``: ``"one"`` of each key, or ``"all"``. ``devices`` of a board, such as ``"opencl:0"``, and ``threads`` of
    a call: each of them with each model. Each cell is measured in ``sessions``, ``repeat`` results in each. Inputs are
    random, from a fixed seed. ``say`` gets a line as each board begins and ends, ``progress`` the number of sessions of
    boards that are over, and of all; True shows a bar, as a notebook does.

    Raises `UsageError` for arguments that make no sense, `UnknownKey` for a key without a server, `NotSupported` for
    TVM's tracker. Whatever fails later is in the table.
    """
    plan = BenchPlan(named(models), checked_devices(devices), checked_threads(threads), sessions, repeat, min_repeat_ms)
    with contextlib.ExitStack() as stack:
        connection = tracker if isinstance(tracker, Tracker) else stack.enter_context(connect_tracker(tracker))
        places = boards_of(connection, key, boards)
        report = stack.enter_context(reporting(progress, "measuring", "session"))
        return run(connection, plan, places, say, report=report)


def named(models: Sequence[str | Path]) -> dict[str, Path]:
    """Files by their names, or by their paths where two have one name. Raises `UsageError` for none, and for twins."""
    paths = [Path(model) for model in models]
    names = [path.name for path in paths]
    found = {path.name if names.count(path.name) == 1 else str(path): path for path in paths}
    if not found or len(found) < len(paths):
        raise UsageError("a model is given twice: leave one out" if found else "give at least one model to measure")
    return found


def checked_devices(devices: Sequence[str]) -> list[str]:
    """Names of devices in their one form. Raises `UsageError`."""
    return [str(device_names.parse(device)) if device else "" for device in dict.fromkeys(devices)] or [""]


def checked_threads(threads: Sequence[int]) -> list[int]:
    """Numbers of threads, each once. Raises `UsageError`."""
    for count in threads:
        device_names.check_threads(count)
    return list(dict.fromkeys(threads)) or [0]


def boards_of(
    tracker: Tracker, key: str | Sequence[str], boards: str = "one", before: Collection[str] = ()
) -> list[BoardPlan]:
    """The boards to measure on: ``"one"`` of each key, or ``"all"``. Those ``before`` are preferred: they have figures.

    Raises `UsageError`, `UnknownKey` for a key that no server has, `NotSupported` for TVM's tracker.
    """
    if boards not in ("one", ALL):
        raise UsageError(f"boards={boards!r}: give 'one' of each key, or 'all'")
    servers = tracker.summary().get("servers")
    if servers is None:
        raise NotSupported("the tracker is TVM's: it knows no boards by name; use rpcsys tracker")
    by_key: dict[str, list[ServerRow]] = defaultdict(list)
    for server in servers:
        by_key[server["key"]].append(server)
    keys = sorted(by_key) if key == ALL else [key] if isinstance(key, str) else list(dict.fromkeys(key))
    for each in keys:
        if each not in by_key:
            known = ", ".join(sorted(by_key)) or "none"
            raise UnknownKey(f"no server offers {each!r}; there is {known}")
    if not keys:
        raise UnknownKey("the tracker has no server: start one, with rpcsys server --key KEY --tracker HOST:PORT")
    return [plan for each in keys for plan in _of_key(each, by_key[each], boards, before)]


def _of_key(key: str, servers: Sequence[ServerRow], boards: str, before: Collection[str]) -> list[BoardPlan]:
    whys = {server["name"]: _why_not(server) for server in servers}
    if boards == ALL:
        return [BoardPlan(key, name, why) for name, why in sorted(whys.items())]
    fit = [server for server in servers if not whys[server["name"]]]
    order = sorted(fit, key=lambda server: (server["name"] not in before, -server["free"], server["name"]))
    if order:
        return [BoardPlan(key, order[0]["name"])]
    return [BoardPlan(key, "", "; ".join(f"{name} {why}" for name, why in sorted(whys.items())))]


def _why_not(server: ServerRow) -> str:
    """Why a server's board is not measured on; "" if it is."""
    if not server["limits"]:
        return "is TVM's server, which has no sessions of ours"
    reason = f" ({server['reason']})" if server.get("reason") else ""
    return "" if server["state"] == "ok" else f"is {server['state']}{reason}: see rpcsys query"


def run(
    tracker: Tracker, plan: BenchPlan, boards: Sequence[BoardPlan], say: Say = lambda line: None,
    only: Collection[Cell] | None = None, report: Advance | None = None,
) -> BenchTable:  # fmt: skip
    """Measure on these boards; ``only``: these cells. Ctrl-C ends all sessions. ``report``: `bench`'s ``progress``."""
    machines = Machines()
    stopped = threading.Event()
    over = SessionCount(len(boards) * plan.sessions, report or (lambda done, total: None))
    runs = [BoardRun(tracker, plan, board, machines, say, stopped, only, over) for board in boards]
    try:
        for future in [_in_thread(each.measure) for each in runs]:
            future.result()
    except BaseException:
        stopped.set()
        for each in runs:
            each.end()
        raise
    rows = [row for each in runs for row in each.rows()]
    order = {name: place for place, name in enumerate(plan.models)}
    rows.sort(key=lambda row: order[row.cell.model])
    return BenchTable(tuple(rows), {each.board.name: each.facts() for each in runs if each.board.name})


def _in_thread(function: Callable[[], None]) -> Future[None]:
    """Call a function in a thread that this process does not wait for at its end: it may wait for a board."""
    future: Future[None] = Future()

    def call() -> None:
        try:
            function()
            future.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            future.set_exception(error)

    threading.Thread(target=call, name="rpcsys-bench", daemon=True).start()
    return future


class Machines:
    """A lock for each machine: boards that are servers of one machine would disturb each other."""

    def __init__(self) -> None:
        self._locks: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
        self._own = threading.Lock()

    def of(self, session: Session) -> threading.Lock:
        """The lock of a session's machine: the same host name at the same address, or behind the same proxy."""
        with self._own:
            return self._locks[str(session.info.get("machine", {}).get("host", "")), session.address[0]]


class SessionCount:
    """Counts the sessions of all boards that are over, and reports it. For any thread."""

    def __init__(self, total: int, report: Advance) -> None:
        self._done, self._total, self._report = 0, total, report
        self._lock = threading.Lock()

    def add(self, sessions: int) -> None:
        """So many more are over, or will not be."""
        with self._lock:
            self._done += sessions
            self._report(self._done, self._total)


@dataclass
class _Row:
    """A cell's results so far."""

    blocks: list[tuple[float, ...]] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)
    runtime: str = ""
    memory: int | None = None
    doubtful: int = 0
    error: RpcsysError | None = None
    broken: bool = False  # whether the error came while the model was loaded or ran

    def measured(self, cell: Cell) -> Measured:
        joules = sum(self.joules) / len(self.joules) if self.joules else None
        error = one_line(self.error) if self.error is not None else ""
        # There the file has a folder of its own, in which the files of its weights are, too.
        error = re.sub(rf"\b\d+/{re.escape(Path(cell.model).name)}", cell.model, error)
        return Measured(
            cell, tuple(self.blocks) if not error else (), self.runtime, self.memory, joules, tuple(self.warnings),
            self.doubtful, error, self.broken,
        )  # fmt: skip


class BoardRun:
    """One board's part of a bench."""

    def __init__(
        self, tracker: Tracker, plan: BenchPlan, board: BoardPlan, machines: Machines, say: Say,
        stopped: threading.Event, only: Collection[Cell] | None, over: SessionCount,
    ) -> None:  # fmt: skip
        self.board = board
        self._count = over
        self._tracker, self._plan, self._machines, self._say, self._stopped = tracker, plan, machines, say, stopped
        self._rows = {cell: _Row() for cell in plan.cells(board) if only is None or cell in only}
        self._session: Session | None = None
        self._info: Mapping[str, Any] = {}
        self._pace: list[tuple[float, ...]] = []
        self._over = False  # whether the board cannot be measured on any longer
        self._machine: threading.Lock | None = None  # its machine's, known behind the first session's opening

    def rows(self) -> list[Measured]:
        return [row.measured(cell) for cell, row in self._rows.items()]

    def facts(self) -> BenchBoard:
        versions = self._info.get("capabilities", {}).get("versions", {})
        return BenchBoard(self.board.key, dict(self._info.get("machine", {})), dict(versions), tuple(self._pace))

    def end(self) -> None:
        """End its session, from another thread."""
        session = self._session
        if session is not None:
            session.close()

    def measure(self) -> None:
        """Measure all its cells in each session; what fails is in its rows."""
        if self.board.why:
            self._fail([*self._rows], NotSupported(self.board.why))
        order = random.Random(f"{SEED} {self.board.name}")
        counted = 0
        for number in range(self._plan.sessions):
            cells = [cell for cell, row in self._rows.items() if row.error is None]
            if not cells or self._over or self._stopped.is_set():
                break
            order.shuffle(cells)  # so that no cell always comes behind the same one
            self._say(f"{self.board.name}: session {number + 1} of {self._plan.sessions}")
            while cells and not self._stopped.is_set():
                cells = self._in_a_session(cells, number)
            self._count.add(1)
            counted += 1
        self._count.add(self._plan.sessions - counted)
        if self._rows:
            self._say(f"{self.board.name or self.board.key}: done")

    def _in_a_session(self, cells: Sequence[Cell], number: int) -> list[Cell]:
        """Measure cells in a new session; those that are left where it is lost before its end."""
        try:
            with contextlib.ExitStack() as stack:
                session = self._open(stack)
                if len(self._pace) == number:
                    self._pace.append(pace_of(session))
                for place, cell in enumerate(cells):
                    try:
                        self._measure(session, cell, self._rows[cell])
                    except RpcsysError as error:
                        self._rows[cell].error = error
                        self._rows[cell].broken = isinstance(error, (RemoteError, SessionError))
                        if session.closed is not None:
                            return list(cells[place + 1 :])
        except RpcsysError as error:
            self._fail(cells, error)
        return []

    def _open(self, stack: contextlib.ExitStack) -> Session:
        """A session, while no other board of the same machine is measured on."""
        if self._machine is not None:
            stack.enter_context(self._machine)
        labels, plan = {"server": self.board.name}, self._plan
        session = self._tracker.request(
            self.board.key, 1, plan.session_s, plan.wait_s, labels=labels, on_queued=lambda event: None
        )
        stack.enter_context(session)
        self._session, self._info = session, session.info
        if self._machine is None:
            self._machine = self._machines.of(session)
            stack.enter_context(self._machine)
        return session

    def _measure(self, session: Session, cell: Cell, row: _Row) -> None:
        path = self._plan.models[cell.model]
        empty = own_memory(session)
        module = load(session, path, [*self._plan.models].index(cell.model), cell)
        row.runtime = module.kind
        result = timed(session, module, cell.device, self._plan)
        full = own_memory(session)
        if empty is not None and full is not None:
            row.memory = max(row.memory or 0, full - empty)
        row.blocks.append(result.results)
        row.joules += [] if result.joules is None else [result.joules]
        row.doubtful += bool(result.warnings)
        row.warnings.update(dict.fromkeys(result.warnings[:4] if not row.warnings else ()))

    def _fail(self, cells: Sequence[Cell], error: RpcsysError) -> None:
        """The board cannot be had, or is lost: its cells end with the sessions that they have."""
        self._over = True
        for cell in cells:
            row = self._rows[cell]
            if row.blocks:
                row.warnings[f"only {len(row.blocks)} of {self._plan.sessions} sessions: {one_line(error)}"] = None
            else:
                row.error = error


def load(session: Session, path: Path, number: int, cell: Cell) -> RemoteModule:
    """Load the model with this ``number``, which is sent once in a session."""
    there = f"{number}/{path.name}"
    sent = str(number) in session.listdir() and path.name in session.listdir(str(number))
    source = there if sent else path
    return session.load_module(source, name=there, device=cell.device, threads=cell.threads)


def timed(session: Session, module: RemoteModule, device: str, plan: BenchPlan) -> TimingResult:
    """Time a model with random inputs on the board, behind a measurement that warms it up."""
    feed = samples.random_inputs(module.inputs, SEED)
    args = [session.array(value, device=device) if value.dtype.kind in "fiub" else value for value in feed.values()]

    def measured(repeat: int) -> TimingResult:
        evaluator = module.time_evaluator("main", number=1, repeat=repeat, min_repeat_ms=plan.min_repeat_ms)
        return timing_of(evaluator.submit(*args).result())

    measured(1)
    return measured(plan.repeat)


def pace_of(session: Session) -> tuple[float, ...]:
    """Seconds of a call that does nothing, measured on the board: how fast its Python is now."""
    evaluator = session.get_function("testing.nop").time_evaluator(**_PACE)  # type: ignore[arg-type]
    return timing_of(evaluator.submit().result()).results


def own_memory(session: Session) -> int | None:
    """Bytes of the session's process that are no file's; None where its board does not say."""
    try:
        found: int | None = session.board_state().get("process", {}).get("anonymous")
    except RemoteFunctionError:  # a server of an earlier version
        return None
    return found
