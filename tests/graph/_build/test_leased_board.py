from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rpcsys import graph
from rpcsys.errors import (
    FrameError,
    RemoteFunctionError,
    SessionLost,
    TrackerUnreachable,
    UnknownKey,
    UsageError,
    WaitTimeout,
)
from rpcsys.graph import Leased, Pipeline
from rpcsys.graph._build.leased_board import TRIES, LeasedBoard, LeasedSession
from rpcsys.graph._build.leased_module import LeasedModule
from tests.graph.running import chain

DEADLINE_S = 20


class Lab:
    """Replaces the tracker: devices that double a number; the frames in ``deadly`` crash a device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, deadly: tuple[int, ...] = ()) -> None:
        self.deadly = deadly
        self.sessions: list[Any] = []
        self.ran: list[int] = []
        self.together: Callable[[], Any] = lambda: None
        monkeypatch.setattr(LeasedBoard, "_request", lambda _, wait_s, again: self.device(wait_s, again))

    def device(self, wait_s: float, again: bool) -> LeasedSession:
        session: Any = SimpleNamespace(closed=None, device_report=lambda: {"runs": []})
        session.close = lambda: setattr(session, "closed", "by us")
        self.sessions.append(session)

        def run(x: int) -> int:
            self.together()
            if session.closed is None and x in self.deadly:
                session.closed = "brought down"
            if session.closed is not None:
                raise SessionLost("gone")
            self.ran.append(x)
            return 2 * x

        return LeasedSession(session, defaultdict(lambda: run))


def module(**more: Any) -> LeasedModule:
    made = graph.build(graph.split(chain(), [])[0], Leased("board", **more))
    assert isinstance(made, LeasedModule)
    return made


def pipeline(*modules: LeasedModule, **more: Any) -> Pipeline:
    return Pipeline([("s", modules[0], ["x"], ["y"])], **more)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []


def test_a_device_is_leased_once_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    with module() as device:
        assert device.session is None
        with pipeline(device) as running:
            assert device.session is lab.sessions[0]  # before the first frame
            assert list(running.run(range(50))) == [2 * x for x in range(50)]
        assert device.session is not None  # the pipeline did not build it, and does not close it
    assert [session.closed for session in lab.sessions] == ["by us"]
    with pytest.raises(RemoteFunctionError, match="was closed"):
        device(1)


def test_calls_are_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    lab.together = threading.Barrier(3).wait  # each call waits for two others
    with module(calls=3) as device, pipeline(device) as running:
        assert list(running.run(range(9))) == [2 * x for x in range(9)]


def test_replicas_of_a_leased_device_are_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    with module(calls=2) as device:
        with pipeline(device, replicas={"s": 3}) as running:
            assert len(lab.sessions) == 3
            assert list(running.run(range(50))) == [2 * x for x in range(50)]
        assert [session.closed for session in lab.sessions] == [None, "by us", "by us"]


def test_a_frame_that_crashes_devices_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, deadly=(5, 23))
    with module() as device, pipeline(device) as running:
        outputs = list(running.run(range(40)))
    for x, output in enumerate(outputs):
        if x in lab.deadly:
            assert isinstance(output, FrameError)
            assert isinstance(output.__cause__, SessionLost)
        else:
            assert output == 2 * x
    assert sorted(lab.ran) == [x for x in range(40) if x not in lab.deadly]
    assert len(lab.sessions) <= 1 + 2 * TRIES


def test_frames_of_a_lost_device_run_on_the_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    done = threading.Event()

    def two_then_late(device: LeasedBoard, wait_s: float, again: bool) -> LeasedSession:
        if again:
            assert done.wait(DEADLINE_S)
        return lab.device(wait_s, again)

    monkeypatch.setattr(LeasedBoard, "_request", two_then_late)
    with module() as device, pipeline(device, replicas={"s": 2}) as running:
        outputs = running.run(range(40))
        assert [next(outputs) for _ in range(10)] == [2 * x for x in range(10)]
        lab.sessions[0].closed = "brought down"
        assert list(outputs) == [2 * x for x in range(10, 40)]
        done.set()
        replacing = device.board._replacing
        assert replacing is not None
        replacing.join(DEADLINE_S)
        assert device.session is lab.sessions[2]


def test_an_error_without_a_lost_device_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    with module() as device, pipeline(device) as running:
        assert "TypeError" in str(running.submit(None).exception(DEADLINE_S))
        assert running.submit(1).result(DEADLINE_S) == 2
    assert len(lab.sessions) == 1


@pytest.mark.parametrize("error", [UnknownKey("no such key"), TrackerUnreachable("nobody there")])
def test_an_unavailable_device_is_an_error_before_any_frame(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(LeasedBoard, "_request", refuse)
    with pytest.raises(type(error)):
        Pipeline(graph.split(chain(), [2]), {"stage1": Leased("board")})


def test_the_wait_for_another_device_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, deadly=(1,))
    asked: list[bool] = []

    def one_then_none(_: Any, wait_s: float, again: bool) -> LeasedSession:
        asked.append(again)
        if len(asked) == 1:
            return lab.device(wait_s, again)
        if len(asked) < 4:
            raise TrackerUnreachable("it starts anew")
        raise WaitTimeout("no device became free")

    monkeypatch.setattr(LeasedBoard, "_request", one_then_none)
    with module(calls=1) as device, pipeline(device) as running:
        assert running.submit(0).result(DEADLINE_S) == 0
        error = running.submit(1).exception(DEADLINE_S)
    assert isinstance(error, FrameError)
    assert isinstance(error.__cause__, WaitTimeout)
    assert asked == [False, True, True, True]


def test_frames_share_one_wait_for_a_lost_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab = Lab(monkeypatch, deadly=(1, 2, 3))
    lab.together = threading.Barrier(3).wait
    waits: list[bool] = []

    def one_then_none(_: Any, wait_s: float, again: bool) -> LeasedSession:
        if not again:
            return lab.device(wait_s, again)
        waits.append(again)
        time.sleep(1.0)  # the other frames have lost their device meanwhile
        raise WaitTimeout("no device became free")

    monkeypatch.setattr(LeasedBoard, "_request", one_then_none)
    with module(calls=3) as device, pipeline(device) as running:
        frames = [running.submit(x) for x in lab.deadly]
        errors = [frame.exception(DEADLINE_S) for frame in frames]
        assert {type(error.__cause__) for error in errors if error} == {WaitTimeout}
        assert waits == [True]
        assert running.submit(1).exception(DEADLINE_S) is not None
        assert waits == [True, True]  # a later frame waits anew
    assert caplog.messages == ["the device of board is lost; its frames wait for another one, up to 60 s"] * 2


def test_close_ends_the_wait_for_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, deadly=(1,))
    waiting = threading.Event()

    def one_then_late(device: LeasedBoard, wait_s: float, again: bool) -> LeasedSession:
        if again:
            waiting.set()
            assert device._ended.wait(DEADLINE_S)
        return lab.device(wait_s, again)

    monkeypatch.setattr(LeasedBoard, "_request", one_then_late)
    device = module(calls=1)
    with pipeline(device) as running:
        running.submit(1)
        assert waiting.wait(DEADLINE_S)
        device.close()
    assert [session.closed is None for session in lab.sessions] == [False, False]


def on(device: str, **more: Any) -> Leased:
    return Leased("board", "lab:9190", device=device, **more)


def test_stages_of_one_board_share_one_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    stages = graph.split(chain(), [1, 2, 3])
    targets = {"stage0": on("cpu"), "stage1": "onnxruntime", "stage2": on("opencl"), "stage3": on("cpu:0")}
    with Pipeline(stages, targets) as running:
        assert repr(running) == "<pipeline of stage0, stage1, stage2+stage3>"
        assert len(lab.sessions) == 1
        assert list(running.figures()) == ["stage0", "stage1", "stage2+stage3", "stage2", "stage3"]
    assert [session.closed for session in lab.sessions] == ["by us"]


def test_replicas_of_a_call_are_boards_that_its_stages_share(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    stages = graph.split(chain(), [1, 2])
    board = {"stage0": on("cpu"), "stage2": on("opencl")}
    with Pipeline(stages, {**board, "stage1": "onnxruntime"}, replicas={"stage0": 2, "stage2": 3}):
        assert len(lab.sessions) == 3
    with Pipeline(stages, {**board, "stage1": on("opencl")}, replicas={"stage1": 2}) as running:
        assert repr(running) == "<pipeline of stage0+stage1+stage2>"
        assert len(lab.sessions) == 5
    assert {session.closed for session in lab.sessions} == {"by us"}


@pytest.mark.parametrize(
    "other", [{"board": "second"}, {"tracker": ("lab", 9191)}, {"key": "board2"}], ids=lambda other: next(iter(other))
)
def test_another_key_tracker_or_name_is_another_board(monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]) -> None:
    lab = Lab(monkeypatch)
    stages = graph.split(chain(), [2])
    with Pipeline(stages, {"stage0": on("cpu"), "stage1": replace(on("cpu"), **other)}):
        assert len(lab.sessions) == 2
    with Pipeline(stages, {"stage0": on("cpu"), "stage1": replace(on("cpu"), tracker=("lab", 9190))}):
        assert len(lab.sessions) == 3


def test_stages_of_one_board_have_one_way_to_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    Lab(monkeypatch)
    with pytest.raises(UsageError, match="'stage0' and 'stage1' share a board of board, and have another encode each"):
        Pipeline(graph.split(chain(), [2]), {"stage0": on("cpu"), "stage1": on("cpu", encode="zlib")})
