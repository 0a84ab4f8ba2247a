"""The queues of devices: one call at a time, the lowest order first, and calls that leave or are stopped."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ModelError, RemoteFunctionError
from rpcsys.module import module, placement
from rpcsys.module.kinds.graph import GraphStage, graph
from rpcsys.module.module import Module, running_call

_names = itertools.count()


def new_queue():
    return placement.queue(f"test:{next(_names)}")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60))
def test_the_lowest_order_that_waits_is_next(steps):
    """Each step enrolls a call, or lets one leave, which has the device or waits for it."""
    queue, here = new_queue(), []
    for enrolls, number in steps:
        if enrolls or not here:
            here.append(queue.enroll(number))
        else:
            turn = here.pop(number % len(here))
            had = turn.granted
            turn.leave()
            turn.leave()
            if had and here:
                (now,) = (each for each in here if each.granted)
                assert now.order == min(each.order for each in here)
        assert sum(turn.granted for turn in here) == bool(here)


def test_turns_are_never_taken_at_once_and_are_counted():
    queue, inside, most = new_queue(), [], []

    def work():
        for _ in range(200):
            with placement.in_order(), placement.turn_on(queue.device):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (max(most), len(most), queue.figures.calls) == (1, 1200, 1200)
    assert queue.figures.busy_s > 0


def test_a_call_has_its_first_turn_where_it_was_enrolled():
    queue = new_queue()
    order = placement.new_order()
    turn, later = queue.enroll(order), queue.enroll(placement.new_order())
    with placement.in_order(order, turn):
        with placement.turn_on(queue.device) as mine:
            assert mine is turn
        assert later.granted
    later.leave()
    assert running_call.order is None


def test_a_call_that_fails_before_its_turn_gives_its_place_back():
    queue = new_queue()
    turn, later = queue.enroll(1), queue.enroll(2)
    with pytest.raises(ZeroDivisionError), placement.in_order(1, turn):
        raise ZeroDivisionError
    assert later.granted


def test_a_call_that_waits_is_stopped():
    queue, failed = new_queue(), []
    first = queue.enroll(1)
    stops = []

    def wait():
        running_call.stops = stops
        try:
            with placement.in_order(2), placement.turn_on(queue.device):
                pass
        except RemoteFunctionError as error:
            failed.append(error.args[0])

    thread = threading.Thread(target=wait)
    thread.start()
    while not stops:
        thread.join(0.01)
    stops[0]()
    thread.join(20)
    assert failed == [f"the call was stopped while it waited for {queue.device}"]
    first.leave()
    assert queue.enroll(3).granted


def test_arrays_of_devices_come_to_the_host_and_are_counted():
    device = new_queue().device

    class Array(placement.DeviceArray):
        dtype, shape, nbytes = "float32", (2,), 8

        def __init__(self):
            self.device = device

        def to_host(self):
            return "copied"

    value = [Array(), {"x": (Array(), 3)}]
    assert placement.on_host(value) == ["copied", {"x": ("copied", 3)}]
    figures = placement.figures()[device]
    assert (figures.copied_out, figures.bytes_out) == (2, 16)


class Chip(Module):
    """A module that can run on one device."""

    def __init__(self, device="", can=""):
        super().__init__("chip", {"main": lambda x: x})
        self.device, self.can = device, can

    def place(self, device):
        if device != self.can:
            super().place(device)
        self.device = device if device == self.can else ""


def _graph(*stages):
    made = [
        GraphStage(f"s{place}", chip, [f"x{place}"], [f"x{place + 1}"], device=device)
        for place, (chip, device) in enumerate(stages)
    ]
    return graph(made, [{"name": "x0"}], [{"name": f"x{len(stages)}"}])


def test_a_graph_runs_where_its_stages_do():
    assert _graph((Chip(), ""), (Chip(), "")).devices == ()
    assert _graph((Chip(), ""), (Chip("opencl:0"), "")).devices == ("cpu:0", "opencl:0")
    assert _graph((Chip("opencl:0"), ""), (Chip("opencl:0"), "")).devices == ("opencl:0",)


def test_a_graph_places_its_stages():
    two = _graph((Chip(), "cpu:0"), (Chip(can="opencl:1"), "opencl:1"))
    two.attach(two.imports)
    assert two.devices == ("cpu:0", "opencl:1")
    one = _graph((Chip(can="opencl:1"), ""), (Chip(can="opencl:1"), ""))
    one.place("opencl:1")
    assert one.devices == ("opencl:1",)


def test_a_module_that_cannot_run_there_says_so():
    with pytest.raises(ModelError, match=r"a module of kind chip runs on the CPU alone, not on opencl:0"):
        Chip().place("opencl:0")
    Chip().place("cpu:0")
    with pytest.raises(ModelError, match="runs on the CPU alone"):
        module.Module("group", imports=[Chip()]).place("cuda:0")


def test_a_graph_of_several_devices_is_no_stage():
    inner = _graph((Chip(), ""), (Chip("opencl:0"), ""))
    with pytest.raises(ModelError, match=r"stage 's0' runs on cpu:0, opencl:0; a stage runs on one device"):
        _graph((inner, "")).link()
