"""A runner for TVM's MetaSchedule that keeps its sessions open: it goes where TVM's ``RPCRunner`` goes."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, PyRunner, RunnerFuture, RunnerInput, RunnerResult

from rpcsys.client import Tracker, connect_tracker
from rpcsys.client.tracker import Address
from rpcsys.errors import UsageError
from rpcsys.progress import reporting
from rpcsys.result_store import ResultStore, users_file
from rpcsys.tvm.artefact import Artefact
from rpcsys.tvm.lab_results import LabResults
from rpcsys.tvm.measured import KnownResults
from rpcsys.tvm.open_board import TuningPlan
from rpcsys.tvm.rpc_runner import FAILED, RpcBoards
from rpcsys.tvm.tuning_boards import Boards
from rpcsys.tvm.tuning_state import Candidate
from rpcsys.wire import device_names

#: Kinds of targets that run on the CPU, by which TVM may name a candidate's device.
_ON_CPU = ("llvm", "c", "cpu")
#: The class of TVM's objects for runners in Python.
_RunnerObject: Any = PyRunner._tvm_metadata["cls"]
#: The ``store`` that all of a lab share.
AT_TRACKER = "tracker"
Function = Callable[..., Any] | str | None
StoreLike = ResultStore | str | os.PathLike[str] | bool | None


class Runner(_RunnerObject):  # type: ignore[misc]
    """Measures the candidates of ``tvm.s_tir.meta_schedule`` on the boards of ``key``; a context manager.

    Parameters
    ----------
    key : the key of the boards
    tracker : its address as for `rpcsys.connect_tracker`, or a `Tracker`, which is closed with the runner
    boards : how many boards are used at the same time, at most; None: as many as are free
    priority : of requests for boards. Between two rounds (calls of ``run``) boards are given to those who wait with
        this priority or a higher one
    evaluator_config : TVM's EvaluatorConfig: number, repeat, min_repeat_ms, enable_cpu_cache_flush
    cooldown_s : seconds of pause after each repeat
    alloc_repeat : how many sets of arguments each candidate is measured with
    timeout_s : seconds that one candidate may take; then it ends, and with it its session
    wait_timeout_s : seconds to wait for a board, None: without limit; then the candidates fail
    store : where results are kept, so that a candidate is not measured twice: a file or a `ResultStore`; True: this
        user's own file (`rpcsys.result_store.users_file`); ``"tracker"``: at the tracker's host, for all of a lab (a
        file of that name is ``"./tracker"``); None or False: nowhere
    measure_again : measure candidates whose results are in the store, too, and replace these
    progress : whether a bar shows how many candidates of a round are measured; None: in a notebook
    f_create_session, f_upload_module, f_alloc_argument, f_run_evaluator, f_cleanup, initializer : as ``RPCRunner``'s.
        With any of them ``RPCRunner`` measures, by a session of TVM's client for each candidate: on one board unless
        ``boards`` says more, which it waits for without limit. No results are kept, and ``wait_timeout_s`` and
        ``progress`` mean nothing

    Raises `TrackerUnreachable`, `UsageError`.
    """

    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self,
        key: str,
        tracker: Address | Tracker = None,
        *,
        boards: int | None = None,
        priority: float = 1,
        evaluator_config: EvaluatorConfig | None = None,
        cooldown_s: float = 0.0,
        alloc_repeat: int = 1,
        timeout_s: float = 10.0,
        wait_timeout_s: float | None = 3600.0,
        store: StoreLike = True,
        measure_again: bool = False,
        progress: bool | None = None,
        f_create_session: Function = None,
        f_upload_module: Function = None,
        f_alloc_argument: Function = None,
        f_run_evaluator: Function = None,
        f_cleanup: Function = None,
        initializer: Callable[[], None] | None = None,
    ) -> None:
        if boards is not None and (type(boards) is not int or boards < 1):
            raise UsageError(f"boards={boards!r}: give the number of boards to use at the same time, or None for all")
        if not 0 < timeout_s < math.inf:
            raise UsageError(f"timeout_s={timeout_s!r}: give the seconds that one candidate may take")
        if type(alloc_repeat) is not int or alloc_repeat < 1:
            raise UsageError(f"alloc_repeat={alloc_repeat!r}: give the number of sets of arguments, 1 or more")
        if not 0 <= cooldown_s < math.inf:
            raise UsageError(f"cooldown_s={cooldown_s!r}: give the seconds of pause after each repeat")
        config = evaluator_config or EvaluatorConfig()
        options = _options(config, cooldown_s, alloc_repeat)
        plan = TuningPlan(key, boards, priority, options, timeout_s, wait_timeout_s)
        functions = {
            "f_create_session": f_create_session, "f_upload_module": f_upload_module,
            "f_alloc_argument": f_alloc_argument, "f_run_evaluator": f_run_evaluator, "f_cleanup": f_cleanup,
        }  # fmt: skip
        connected = tracker if isinstance(tracker, Tracker) else connect_tracker(tracker)
        try:
            if initializer or any(function is not None for function in functions.values()):
                used: Boards | RpcBoards = RpcBoards(connected, plan, config, functions, initializer, _tvms_name)
            else:
                used = Boards(connected, plan, KnownResults(_store(store, connected), options, measure_again))
        except BaseException:
            if connected is not tracker:
                connected.close()
            raise
        self._key = key
        self._owned = _OwnedBoards(used, progress)
        super().__init__(self._owned.run)

    def __repr__(self) -> str:
        return f"<rpcsys runner on {self._key}, {self.counts}>"

    @property
    def counts(self) -> dict[str, int]:
        """How many candidates were ``measured``, and of how many the result was ``known`` from the store."""
        return dict(self._owned.boards.counts)

    @property
    def boards(self) -> int:
        """The boards that it holds now, or waits for; where functions are given, those that it may use at once."""
        return self._owned.boards.held

    def close(self) -> None:
        """Give the boards back; candidates under way fail. A second call does nothing."""
        self._owned.boards.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _OwnedBoards:
    """What TVM's object and Python's share: when both are gone, the boards are given back."""

    def __init__(self, boards: Boards | RpcBoards, progress: bool | None) -> None:
        self.boards = boards
        self._progress = progress

    def run(self, inputs: Sequence[RunnerInput]) -> list[RunnerFuture]:
        """A future for each candidate; returns at once."""
        if isinstance(self.boards, RpcBoards):
            return self.boards.run(inputs)
        candidates = [_candidate(each) for each in inputs]
        _show(candidates, self._progress)
        self.boards.measure([candidate for candidate in candidates if not candidate.outcome.done()])
        return [_future(candidate) for candidate in candidates]

    def __del__(self) -> None:
        self.boards.close()


def _show(candidates: Sequence[Candidate], progress: bool | None) -> None:
    """Show how many of these have their results, until all have."""
    stack = contextlib.ExitStack()
    report = stack.enter_context(reporting(progress, "measuring", "candidate"))
    lock, left = threading.Lock(), len(candidates)

    def one_done(_: object) -> None:
        nonlocal left
        with lock:
            left -= 1
            if report is not None:
                report(len(candidates) - left, len(candidates))
            if not left:
                stack.close()

    for candidate in candidates if report is not None else ():
        candidate.outcome.add_done_callback(one_done)


def _options(config: EvaluatorConfig, cooldown_s: float, alloc_repeat: int) -> dict[str, Any]:
    """The options of `rpcsys.client.candidates`."""
    return {
        "number": int(config.number),
        "repeat": int(config.repeat),
        "min_repeat_ms": math.ceil(config.min_repeat_ms),
        "flush_caches": bool(config.enable_cpu_cache_flush),
        "cooldown_ms": round(cooldown_s * 1000),
        "copies": alloc_repeat,
    }


def _store(given: StoreLike, tracker: Tracker) -> ResultStore | LabResults | None:
    if given == AT_TRACKER:
        return LabResults(tracker)
    if given is True:
        return ResultStore(users_file())
    if given is None or given is False:
        return None
    return given if isinstance(given, ResultStore) else ResultStore(given)


def _candidate(given: RunnerInput) -> Candidate:
    """What TVM wants measured; failed already if a board cannot measure it."""
    kind = str(given.device_type)
    candidate = Candidate(Artefact(str(given.artifact_path)), "cpu:0", ())
    try:
        candidate.device = str(device_names.parse(_tvms_name(kind)))
        candidate.arguments = tuple(_array(info.as_json()) for info in given.args_info)
    except UsageError as error:
        candidate.answer(error=error)
    return candidate


def _tvms_name(kind: str) -> str:
    """TVM's name of the device that its tuner calls ``kind``."""
    return "cpu" if kind in _ON_CPU else kind


def _array(info: Any) -> tuple[str, tuple[int, ...]]:
    if not isinstance(info, list) or len(info) != 3 or info[0] != "TENSOR":
        raise UsageError(f"a candidate's argument is no tensor, but {str(info)[:200]}")
    return str(info[1]), tuple(int(extent) for extent in info[2])


def _future(candidate: Candidate) -> RunnerFuture:
    return RunnerFuture(candidate.outcome.done, lambda: _result(candidate))


def _result(candidate: Candidate) -> RunnerResult:
    """The result, in the form of TVM's RPCRunner."""
    try:
        return RunnerResult(candidate.outcome.result(), None)
    except Exception as error:  # noqa: BLE001 - a candidate may raise anything
        return RunnerResult(None, FAILED + str(error))
