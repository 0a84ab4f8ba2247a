"""Candidates that TVM's own ``RPCRunner`` measures on boards of ours: functions of the user's replace parts of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm.s_tir.meta_schedule.runner import (
    EvaluatorConfig,
    RPCConfig,
    RPCRunner,
    RunnerFuture,
    RunnerInput,
    RunnerResult,
)
from tvm.support.popen_pool import kill_child_processes

from rpcsys.client import Tracker
from rpcsys.errors import UsageError, one_line
from rpcsys.tvm.open_board import TuningPlan
from rpcsys.tvm.tuning_boards import runner_closed

#: What TVM's RPCRunner writes before a candidate's error; those who read results may look for it.
FAILED = "RPCRunner: An exception occurred\n"
_CLOSE_S = 5.0  # until the processes of a closed runner have ended
_PAUSE_S = 0.02


class RpcBoards:
    """Boards that ``RPCRunner`` leases, by a session of TVM's client for each candidate.

    ``functions``: by ``RPCRunner``'s names, functions, or the names of global ones of TVM's. They and ``initializer``,
    which is called first, run in processes of their own, one for each board. ``device`` names a board's device, given
    that of a candidate's input. Raises `UsageError` for a function that such a process cannot have.
    """

    def __init__(
        self,
        tracker: Tracker,
        plan: TuningPlan,
        config: EvaluatorConfig,
        functions: Mapping[str, Any],
        initializer: Callable[[], None] | None,
        device: Callable[[str], str],
    ) -> None:
        self.tracker = tracker
        self.held = plan.boards or 1  # at most
        self.counts = {"measured": 0, "known": 0}
        self._device = device
        self._lock = threading.Lock()
        self._under_way: list[RunnerFuture] = []
        self._closed = False
        host, port = tracker.address  # each of several replicas leads to the one that leads
        problem = ""
        try:
            self._runner = RPCRunner(
                RPCConfig(host, port, plan.key, plan.priority, plan.timeout_s),
                config,
                cooldown_sec=plan.options["cooldown_ms"] / 1000,
                alloc_repeat=plan.options["copies"],
                max_workers=self.held,
                initializer=initializer,
                **functions,
            )
        except Exception as error:  # noqa: BLE001 - whatever TVM or a function's module raises
            reason = one_line(error, None).rpartition("Error: ")[2]  # a process answers with its traceback
            given = ", ".join(f"{name}={value!r}" for name, value in functions.items() if value is not None)
            problem = f"TVM's RPCRunner cannot use {given or 'the initializer'}: {reason}"
        if problem:  # outside of the clause, so that the processes end: the error would keep them
            raise UsageError(problem)

    def run(self, inputs: Sequence[RunnerInput]) -> list[RunnerFuture]:
        """A future for each candidate; returns at once."""
        named = [RunnerInput(one.artifact_path, self._device(str(one.device_type)), one.args_info) for one in inputs]
        with self._lock:
            if self._closed:
                error = FAILED + str(runner_closed())
                return [RunnerFuture(lambda: True, lambda: RunnerResult(None, error)) for _ in named]
            futures = list(self._runner.run(named))
            self._under_way = [future for future in self._under_way if not future.done()] + futures
        return [self._counted(future) for future in futures]

    def close(self) -> None:
        """End the processes; candidates under way fail. A second call does nothing."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        pool = self._runner.pool
        pool._threadpool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + _CLOSE_S
        while not all(future.done() for future in self._under_way) and time.monotonic() < until:
            self._kill()
            time.sleep(_PAUSE_S)
        pool.shutdown(wait=False)  # only now: it waits for threads that read from processes
        self.tracker.close()

    def _kill(self) -> None:
        """Kill the processes that run."""
        for worker in list(self._runner.pool._worker_map.values()):
            process = worker._proc
            if process is not None:
                kill_child_processes(process.pid)
                process.kill()

    def _counted(self, future: RunnerFuture) -> RunnerFuture:
        """A future that counts its candidate when its result is first read."""
        read: list[Any] = []

        def result() -> Any:
            found = future.result()
            with self._lock:
                self.counts["measured"] += not read and found.error_msg is None
                read.append(found)
            return found

        return RunnerFuture(future.done, result)
