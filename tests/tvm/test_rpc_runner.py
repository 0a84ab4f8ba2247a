"""TVM's RPCRunner with the user's functions, in its own processes, without a lab."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rpcsys.errors import UsageError

pytest.importorskip("tvm.s_tir.meta_schedule.runner")

from tvm.s_tir import meta_schedule as ms

from rpcsys.client import Tracker
from rpcsys.server.sandbox.processes import alive, children
from rpcsys.tvm import runner
from rpcsys.tvm.open_board import TuningPlan
from rpcsys.tvm.rpc_runner import FAILED, RpcBoards

LONG_S = 600.0
END_S = 60.0
pytestmark = pytest.mark.timeout(120)  # each process imports TVM


@contextlib.contextmanager
def measuring(initializer: Callable[[], None] | None = None, **functions: Any) -> Iterator[RpcBoards]:
    """Boards of a tracker that is not there."""
    plan = TuningPlan("rpi4", None, 1, runner._options(ms.runner.EvaluatorConfig(), 0.0, 2), 5.0, None)
    tracker = Tracker(("127.0.0.1", 1), "ann", 1.0)
    used = RpcBoards(tracker, plan, ms.runner.EvaluatorConfig(), functions, initializer, runner._tvms_name)
    with contextlib.closing(used):
        yield used


def given(kind: str = "llvm") -> Any:
    return ms.runner.RunnerInput("folder/candidate.so", kind, [ms.arg_info.TensorInfo("float32", (2, 3))])


def test_each_part_may_be_the_users() -> None:
    class Session:
        def device(self, kind: str, number: int) -> str:
            return f"{kind} {number}"

    def evaluate(session: Any, module: Any, device: Any, config: Any, arguments: Any) -> list[float]:
        assert (module, device) == ("folder/candidate.so candidate.so", "cpu 0")
        return [float(len(arguments)), float(config.number)]

    with measuring(
        f_create_session=lambda config: Session(),
        f_upload_module=lambda session, local, remote: f"{local} {remote}",
        f_alloc_argument=lambda session, device, specs, count: [specs] * count,
        f_run_evaluator=evaluate,
        f_cleanup=lambda session, remote: None,
    ) as used:
        (future,) = used.run([given()])
        for result in (future.result(), future.result()):
            assert result.error_msg is None
            assert [float(seconds) for seconds in result.run_secs] == [2.0, float(ms.runner.EvaluatorConfig().number)]
        assert future.done()
        assert used.counts == {"measured": 1, "known": 0}


def test_an_error_of_a_function_is_the_candidates() -> None:
    def refuse(config: Any) -> Any:
        raise PermissionError(f"no session with {config.tracker_key} for {config.session_timeout_sec:g} s")

    with measuring(f_create_session=refuse) as used:
        for future in used.run([given(), given()]):
            result = future.result()
            assert result.run_secs is None
            assert result.error_msg.startswith(FAILED)
            assert "no session with rpi4 for 5 s" in result.error_msg
        assert used.counts["measured"] == 0


def test_functions_that_hang_end_with_the_runner() -> None:
    def hang(config: Any) -> Any:
        time.sleep(LONG_S)

    before = {*children(os.getpid())}
    with measuring(f_create_session=hang) as used:
        futures = used.run([given() for _ in range(3)])
        started = {*children(os.getpid())} - before
        assert len(started) == used.held == 1
    for future in futures:
        assert future.result().error_msg.startswith(FAILED)
    end = time.monotonic() + END_S
    while any(map(alive, started)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(alive, started))
    used.close()
    (late,) = used.run([given()])
    assert late.done()
    assert late.result().error_msg == FAILED + "the runner is closed; make another one"


def test_an_initializer_gives_functions_their_names() -> None:
    def register() -> None:
        import tvm_ffi

        tvm_ffi.register_global_func("test.no_session", lambda config: 1 / 0)

    with measuring(register, f_create_session="test.no_session") as used:
        (future,) = used.run([given()])
        assert "division by zero" in future.result().error_msg


@pytest.mark.parametrize(
    ("functions", "words"),
    [({"f_cleanup": "no.such.function"}, r"f_cleanup='no\.such\.function': .* registered"),
     ({"initializer": lambda: 1 / 0}, "the initializer: division by zero"),
     ({"initializer": "no function"}, "the initializer: initializer must be callable")],
)  # fmt: skip
def test_what_its_processes_cannot_have_is_told_at_once(functions: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=rf"^TVM's RPCRunner cannot use {words}"), measuring(**functions):
        pass
