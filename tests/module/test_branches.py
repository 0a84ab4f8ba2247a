"""Steps of one frame that need each other in part, against the order in which they run."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.module import branches
from rpcsys.module.kinds.graph import GraphStage, graph
from rpcsys.module.module import Module, running_call

DIAMOND = [set(), {0}, {0}, {1, 2}]
WAIT_S = 20.0


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 8))
    return [draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set() for number in range(count)]


@given(graphs())
def test_each_step_runs_once_behind_those_that_it_needs(needs):
    ended, lock = [], threading.Lock()

    def step(number):
        with lock:
            assert needs[number] <= set(ended)
            ended.append(number)

    branches.run(needs, step)
    assert sorted(ended) == list(range(len(needs)))


def test_two_branches_run_at_the_same_time():
    both = threading.Barrier(2, timeout=WAIT_S)
    branches.run(DIAMOND, lambda number: both.wait() if number in (1, 2) else None)


@given(graphs(), st.integers(0, 7))
def test_the_first_error_is_raised_and_nothing_behind_it_runs(needs, wrong):
    wrong %= len(needs)
    ran = []

    def step(number):
        ran.append(number)
        if number == wrong:
            raise ValueError(number)

    with pytest.raises(ValueError, match=str(wrong)):
        branches.run(needs, step)
    behind = {wrong}
    for number, each in enumerate(needs):
        if each & behind:
            behind.add(number)
    assert behind.intersection(ran) == {wrong}


def test_which_graphs_have_branches():
    devices = ["", "opencl:0", "", ""]
    assert branches.apart(DIAMOND, devices)
    assert not branches.apart([set(), {0}, {1}, {2}], devices)
    assert not branches.apart(DIAMOND, ["", "opencl:0", "opencl:0", ""])


def test_a_graph_runs_branches_of_a_frame_on_two_devices_at_once():
    both = threading.Barrier(2, timeout=WAIT_S)
    orders = []

    def meet(x):
        orders.append(running_call.order)
        both.wait()
        return x + 1

    def stage(name, function, inputs, output, device=""):
        module = Module("stage", {"main": function})
        module.device = device
        return GraphStage(name, module, inputs, [output])

    stages = [
        stage("first", lambda x: x + 1, ["x"], "a"),
        stage("left", meet, ["a"], "b", "opencl:0"),
        stage("right", meet, ["a"], "c"),
        stage("last", lambda b, c: b * 10 + c, ["b", "c"], "y"),
    ]
    made = graph(stages, [{"name": "x"}], [{"name": "y"}])
    assert made(1) == 33
    assert len(set(orders)) == 1
    assert running_call.order is None
