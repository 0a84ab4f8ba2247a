from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import UsageError
from rpcsys.graph._pipeline.scheduler import Action, FrameFinished, FrameScheduler, StageNode, StartStage, ordered

CHAIN = [StageNode("a"), StageNode("b", ("a",))]
DIAMOND = [StageNode("a"), StageNode("b", ("a",)), StageNode("c", ("a",)), StageNode("d", ("b", "c"))]


def test_a_chain_works_on_two_frames_at_once() -> None:
    state = FrameScheduler(CHAIN, queue=1)
    assert state.admit(0) == [StartStage("a", 0, 0)]
    assert state.admit(1) == []
    assert state.ended(StartStage("a", 0, 0)) == [StartStage("b", 0, 0), StartStage("a", 0, 1)]
    assert state.ended(StartStage("a", 0, 1)) == []
    assert state.ended(StartStage("b", 0, 0)) == [FrameFinished(0), StartStage("b", 0, 1)]
    assert state.ended(StartStage("b", 0, 1)) == [FrameFinished(1)]
    assert not state.under_way


def test_branches_run_side_by_side_and_join() -> None:
    state = FrameScheduler(DIAMOND, queue=1)
    state.admit(0)
    assert state.ended(StartStage("a", 0, 0)) == [StartStage("c", 0, 0), StartStage("b", 0, 0)]
    assert state.ended(StartStage("b", 0, 0)) == []
    assert state.ended(StartStage("c", 0, 0)) == [StartStage("d", 0, 0)]


def test_a_full_queue_stops_the_stage_before_it() -> None:
    state = FrameScheduler(CHAIN, queue=1)
    for frame in range(3):
        state.admit(frame)
    state.ended(StartStage("a", 0, 0))  # b runs 0, a runs 1
    assert state.ended(StartStage("a", 0, 1)) == [StartStage("a", 0, 2)]
    state.admit(3)
    assert state.ended(StartStage("a", 0, 2)) == []  # 1 and 2 wait for b
    assert not state.has_capacity
    assert state.ended(StartStage("b", 0, 0)) == [FrameFinished(0), StartStage("b", 0, 1), StartStage("a", 0, 3)]
    assert state.has_capacity


def test_a_tensor_that_skips_stages_does_not_delay_them() -> None:
    nodes = [StageNode("a"), StageNode("b", ("a",)), StageNode("c", ("b",)), StageNode("d", ("c", "a"))]
    state = FrameScheduler(nodes, queue=1)
    for frame in range(4):
        state.admit(frame)
    for frame in range(3):
        state.ended(StartStage("a", 0, frame))
        state.ended(StartStage("b", 0, frame))
        state.ended(StartStage("c", 0, frame)) if frame < 2 else None
    # d still runs frame 0; c has frame 2, b is free, and a is at frame 3.
    assert state.ended(StartStage("a", 0, 3)) == [StartStage("b", 0, 3)]


def test_replicas_take_turns_and_the_next_stage_keeps_the_order() -> None:
    state = FrameScheduler([StageNode("a", (), 2), StageNode("b", ("a",))], queue=1)
    assert state.admit(0) == [StartStage("a", 0, 0)]
    assert state.admit(1) == [StartStage("a", 1, 1)]
    assert state.ended(StartStage("a", 1, 1)) == []
    assert state.ended(StartStage("a", 0, 0)) == [StartStage("b", 0, 0)]
    assert state.ended(StartStage("b", 0, 0)) == [FrameFinished(0), StartStage("b", 0, 1)]


def test_later_stages_skip_a_failed_frame() -> None:
    state = FrameScheduler(DIAMOND, queue=1)
    state.admit(0)
    state.admit(1)
    assert state.ended(StartStage("a", 0, 0)) == [StartStage("c", 0, 0), StartStage("b", 0, 0), StartStage("a", 0, 1)]
    assert state.ended(StartStage("b", 0, 0), failed=True) == []
    assert list(state.under_way) == [1]
    assert state.ended(StartStage("a", 0, 1)) == [StartStage("b", 0, 1)]
    assert state.ended(StartStage("c", 0, 0)) == [StartStage("c", 0, 1)]  # frame 0's tensors are not needed
    state.ended(StartStage("b", 0, 1))
    assert state.ended(StartStage("c", 0, 1)) == [StartStage("d", 0, 1)]
    assert state.ended(StartStage("d", 0, 1)) == [FrameFinished(1)]


def test_a_dropped_frame_frees_capacity() -> None:
    state = FrameScheduler(CHAIN, queue=1)
    for frame in range(state.limit):
        state.admit(frame)
    assert not state.has_capacity
    assert state.drop(2) == []
    assert state.has_capacity
    assert state.drop(2) == []


def test_the_error_names_a_circle() -> None:
    with pytest.raises(UsageError, match="a, b wait for each other"):
        ordered([StageNode("x"), StageNode("a", ("b",)), StageNode("b", ("a", "x"))])


@st.composite
def graphs(draw: st.DrawFn) -> list[StageNode]:
    nodes: list[StageNode] = []
    for number in range(draw(st.integers(1, 6))):
        needs = draw(st.sets(st.sampled_from(nodes))) if nodes else set()
        nodes.append(StageNode(f"s{number}", tuple(sorted(n.name for n in needs)), draw(st.integers(1, 3))))
    return draw(st.permutations(nodes))


@given(nodes=graphs(), queue=st.integers(1, 3), data=st.data())
def test_frames_end_in_order_within_bounds_and_never_stall(
    nodes: list[StageNode], queue: int, data: st.DataObject
) -> None:
    state = FrameScheduler(nodes, queue)
    by_name = {node.name: node for node in nodes}
    frames, gone = 12, set()
    admitted = 0
    running: list[StartStage] = []
    started: dict[str, list[int]] = {node.name: [] for node in nodes}
    done: set[tuple[str, int]] = set()
    finished: list[int] = []

    def take(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, FrameFinished):
                finished.append(action.frame)
                continue
            assert all((need, action.frame) in done for need in by_name[action.stage].needs)
            assert all((other.stage, other.replica) != (action.stage, action.replica) for other in running)
            assert action.frame not in gone
            started[action.stage].append(action.frame)
            running.append(action)

    while admitted < frames or running:
        assert len(state.under_way) <= state.limit
        choices = [*running, *(["admit"] if admitted < frames and state.has_capacity else [])]
        assert choices, "frames wait, and nothing runs"
        choice = data.draw(st.sampled_from(choices))
        if isinstance(choice, str):
            admitted += 1
            take(state.admit(admitted - 1))
            continue
        running.remove(choice)
        end = data.draw(st.sampled_from(["done", "done", "done", "failed", "dropped"]))
        if end == "dropped":
            gone.add(choice.frame)
            take(state.drop(choice.frame))
        if end == "failed":
            gone.add(choice.frame)
        else:
            done.add((choice.stage, choice.frame))
        take(state.ended(choice, failed=end == "failed"))
    assert not state.under_way
    assert all(order == sorted(order) for order in started.values())
    assert sorted(finished) == sorted(set(range(frames)) - gone)
