"""Measuring on boards: which ones, what is in the rows, and what a failure leaves. Each session is a process's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcsys.client import Session
from rpcsys.errors import NotSupported, UnknownKey, UsageError, WaitTimeout
from rpcsys.measure.benching import (
    BenchPlan,
    BoardPlan,
    Machines,
    bench,
    boards_of,
    checked_devices,
    checked_threads,
    named,
    run,
)
from rpcsys.measure.tables import Cell
from tests.device import Device
from tests.live import deployed
from tests.native import compiled


class FakeTracker:
    """Opens sessions with new processes; ``refusals``: errors of the next requests, None for a session."""

    def __init__(self, *servers: dict[str, Any], refusals: tuple[Exception | None, ...] = ()) -> None:
        self.servers: list[dict[str, Any]] | None = [*servers]
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._refusals = [*refusals]
        self._open = contextlib.ExitStack()

    def summary(self) -> dict[str, Any]:
        return {} if self.servers is None else {"servers": self.servers}

    def request(self, key: str, priority: float, session_s: float, wait_s: float, **more: Any) -> Session:
        self.asked.append((key, more["labels"]))
        refusal = self._refusals.pop(0) if self._refusals else None
        if refusal is not None:
            raise refusal
        return self._open.enter_context(Device()).session()

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def tracker() -> Iterator[FakeTracker]:
    made = FakeTracker()
    with contextlib.closing(made):
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deployed.onnx_model(tmp_path_factory.mktemp("model") / "scale.onnx", 3)


def server(name: str, key: str = "rpi4", free: int = 1, state: str = "ok", **more: Any) -> dict[str, Any]:
    return {"name": name, "key": key, "free": free, "state": state, "reason": "", "limits": True, **more}


# ---------------------------------------------------------------- which boards


def test_one_board_of_each_key_the_freest_first(tracker: FakeTracker) -> None:
    tracker.servers = [server("b"), server("a"), server("c", free=3), server("x", "edge"), server("d", state="drained")]
    assert boards_of(tracker, "all") == [BoardPlan("edge", "x"), BoardPlan("rpi4", "c")]  # type: ignore[arg-type]
    assert boards_of(tracker, ["rpi4"]) == [BoardPlan("rpi4", "c")]  # type: ignore[arg-type]
    assert boards_of(tracker, "rpi4", before=["b"]) == [BoardPlan("rpi4", "b")]  # type: ignore[arg-type]


def test_all_boards_and_why_one_is_left_out(tracker: FakeTracker) -> None:
    tracker.servers = [server("b", state="unhealthy", reason="too hot"), server("a"), server("t", limits=False)]
    plans = boards_of(tracker, "rpi4", "all")  # type: ignore[arg-type]
    assert [(plan.name, bool(plan.why)) for plan in plans] == [("a", False), ("b", True), ("t", True)]
    assert plans[1].why == "is unhealthy (too hot): see rpcsys query"
    tracker.servers = tracker.servers[:1]
    (plan,) = boards_of(tracker, "rpi4")  # type: ignore[arg-type]
    assert (plan.name, plan.why) == ("", "b is unhealthy (too hot): see rpcsys query")


def test_what_cannot_be_asked_for(tracker: FakeTracker) -> None:
    with pytest.raises(UnknownKey, match="the tracker has no server"):
        boards_of(tracker, "all")  # type: ignore[arg-type]
    tracker.servers = [server("a")]
    with pytest.raises(UnknownKey, match="no server offers 'rpi5'; there is rpi4"):
        boards_of(tracker, "rpi5")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'one' of each key, or 'all'"):
        boards_of(tracker, "rpi4", "two")  # type: ignore[arg-type]
    tracker.servers = None
    with pytest.raises(NotSupported, match="TVM's"):
        boards_of(tracker, "all")  # type: ignore[arg-type]


def test_models_have_names_of_their_own() -> None:
    assert [*named(["a/m.onnx", "b/m.onnx", "n.so"])] == ["a/m.onnx", "b/m.onnx", "n.so"]
    for wrong in ([], ["m.onnx", "m.onnx"]):
        with pytest.raises(UsageError):
            named(wrong)


def test_devices_and_threads_are_checked_at_once() -> None:
    assert checked_devices(["cpu", "cpu", "opencl:1"]) == ["cpu:0", "opencl:1"]
    assert checked_threads([1, 2, 1]) == [1, 2]
    for wrong in (-1, 1.5, "2", True):
        with pytest.raises(UsageError):
            checked_threads([wrong])  # type: ignore[list-item]
    with pytest.raises(UsageError):
        checked_devices(["gpu"])
    with pytest.raises(UsageError):
        bench(["m.onnx"], threads=[-1])


# ---------------------------------------------------------------- rows


def measured(tracker: FakeTracker, plan: BenchPlan, *boards: BoardPlan, **more: Any) -> Any:
    return run(tracker, plan, boards or [BoardPlan("rpi4", "a")], **more)  # type: ignore[arg-type]


def short(model: Path, **more: Any) -> BenchPlan:
    return BenchPlan({"scale.onnx": model}, **{"sessions": 2, "repeat": 3, "min_repeat_ms": 0.1, **more})


def test_each_cell_is_measured_in_each_session(tracker: FakeTracker, model: Path) -> None:
    said: list[str] = []
    table = measured(tracker, short(model, threads=[1, 2]), say=said.append)
    assert [row.cell for row in table.rows] == [Cell("scale.onnx", "a", "rpi4", "", count) for count in (1, 2)]
    for row in table.rows:
        assert (row.error, row.runtime) == ("", "rpcsys.onnx")
        assert [len(block) for block in row.blocks] == [3, 3]
        assert row.median > 0
        assert row.memory is not None
    facts = table.boards["a"]
    assert facts.key == "rpi4"
    assert facts.machine["cores"] >= 1
    assert "python" in facts.versions
    assert [len(block) for block in facts.pace] == [5, 5]
    assert tracker.asked == [("rpi4", {"server": "a"})] * 2
    assert said[-1] == "a: done"


def test_a_model_that_fails_is_a_row_and_the_others_go_on(tracker: FakeTracker, model: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    models = {"broken.onnx": tmp_path / "broken.onnx", "scale.onnx": model}
    broken, fine = measured(tracker, BenchPlan(models, sessions=2, repeat=2, min_repeat_ms=0)).rows
    assert broken.error.startswith("broken.onnx cannot be loaded")
    assert broken.broken
    assert broken.blocks == ()
    assert len(fine.blocks) == 2


def test_a_model_that_crashes_its_session_is_a_row_and_the_others_get_a_new_one(
    tracker: FakeTracker, model: Path, tmp_path: Path
) -> None:
    source = tmp_path / "crash.c"
    source.write_text("int __tvm_ffi_main(void *a, void *b, int c, void *d) { return *(volatile int *)0; }")
    models = {"crash.so": compiled(source, tmp_path / "crash.so"), "scale.onnx": model}
    crashed, fine = measured(tracker, BenchPlan(models, sessions=3, repeat=2, min_repeat_ms=0)).rows
    assert crashed.broken
    assert crashed.error
    assert len(fine.blocks) == 3
    assert len(tracker.asked) in (3, 4)  # one more where the crash came before the other model


def test_a_device_that_the_board_lacks_is_a_row(tracker: FakeTracker, model: Path) -> None:
    host, opencl = measured(tracker, short(model, devices=["", "opencl:0"])).rows
    assert host.error == ""
    assert "opencl:0" in opencl.error


def test_a_board_that_cannot_be_had_is_a_row_and_another_goes_on(model: Path) -> None:
    tracker = FakeTracker(refusals=(WaitTimeout("taken"),))
    with contextlib.closing(tracker):
        lost, fine, drained = measured(
            tracker, short(model), BoardPlan("rpi4", "a"), BoardPlan("edge", "b"), BoardPlan("x1", "c", "is drained")
        ).rows
    both = sorted([lost, fine], key=lambda row: not row.error)
    assert (both[0].error, both[0].broken) == ("taken", False)
    assert len(both[1].blocks) == 2
    assert drained.error == "is drained"


def test_a_board_that_is_lost_meanwhile_keeps_its_sessions(model: Path) -> None:
    tracker = FakeTracker(refusals=(None, None, WaitTimeout("taken for long")))
    with contextlib.closing(tracker):
        (row,) = measured(tracker, short(model, sessions=5)).rows
    assert (row.error, len(row.blocks)) == ("", 2)
    assert row.warnings[-1] == "only 2 of 5 sessions: taken for long"
    assert len(tracker.asked) == 3


def test_some_cells_are_measured_again(tracker: FakeTracker, model: Path) -> None:
    wanted = Cell("scale.onnx", "a", "rpi4", "", 2)
    table = measured(tracker, short(model, threads=[1, 2]), only=[wanted])
    assert [row.cell for row in table.rows] == [wanted]


def test_a_mistake_in_this_code_is_raised_and_ends_the_others(model: Path) -> None:
    tracker = FakeTracker(refusals=(ZeroDivisionError("a bug"),))
    with contextlib.closing(tracker), pytest.raises(ZeroDivisionError):
        measured(tracker, short(model))


def test_servers_of_one_machine_are_measured_in_turn() -> None:
    class Opened:
        def __init__(self, host: str, address: str) -> None:
            self.info, self.address = {"machine": {"host": host}}, (address, 1)

    machines = Machines()
    one = machines.of(Opened("a", "10.0.0.1"))  # type: ignore[arg-type]
    assert machines.of(Opened("a", "10.0.0.1")) is one  # type: ignore[arg-type]
    assert machines.of(Opened("b", "10.0.0.1")) is not one  # type: ignore[arg-type]
    assert machines.of(Opened("a", "10.0.0.2")) is not one  # type: ignore[arg-type]
    assert isinstance(one, type(threading.Lock()))
