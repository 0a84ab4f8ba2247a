"""When the loop calls its callbacks."""

from __future__ import annotations

import os
import time

import pytest

from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import Loop


class LoopHarness:
    def __init__(self) -> None:
        self.now = 100.0
        self.loop = Loop(lambda: self.now)
        self.called: list[str] = []

    def one(self) -> None:
        self.called.append("one")

    def two(self) -> None:
        self.called.append("two")

    def pass_s(self, seconds: float) -> list[str]:
        self.called.clear()
        self.now += seconds
        self.loop.run_once(0.0)
        return self.called


@pytest.fixture
def harness():
    made = LoopHarness()
    yield made
    made.loop.close()


def test_a_due_timer_is_called_once(harness):
    harness.loop.call_at(101.0, harness.one)
    harness.loop.call_at(102.0, harness.two)
    assert harness.pass_s(0.9) == []
    assert harness.pass_s(0.1) == ["one"]
    assert harness.pass_s(5.0) == ["two"]
    assert harness.pass_s(5.0) == []


def test_a_new_time_replaces_the_earlier_one(harness):
    harness.loop.call_at(101.0, harness.one)
    harness.loop.call_at(103.0, harness.one)
    assert harness.pass_s(1.0) == []
    assert harness.pass_s(2.0) == ["one"]
    harness.loop.call_at(104.0, harness.one)
    harness.loop.call_at(None, harness.one)
    harness.loop.call_at(None, harness.two)
    assert harness.pass_s(9.0) == []


def test_a_callback_can_postpone_another(harness):
    def put_off() -> None:
        harness.loop.call_at(None, harness.one)
        harness.loop.call_at(200.0, harness.two)

    harness.loop.call_at(100.0, put_off)
    harness.loop.call_at(100.0, harness.one)
    harness.loop.call_at(100.0, harness.two)
    assert harness.pass_s(0.0) == []
    assert harness.pass_s(100.0) == ["two"]


def test_a_callback_can_set_its_next_time(harness):
    def again() -> None:
        harness.one()
        harness.loop.call_at(harness.now + 1.0, again)

    harness.loop.call_at(100.0, again)
    assert [harness.pass_s(1.0).copy() for _ in range(3)] == [["one"]] * 3


def test_a_wait_ends_when_something_is_due():
    loop, called = Loop(), []
    loop.call_at(loop.now() + 0.05, lambda: called.append(time.monotonic()))
    while not called:
        loop.run_once(30.0)
    loop.close()


def test_descriptors_are_called_until_they_are_removed(harness):
    reading, writing = os.pipe()
    harness.loop.add(reading, harness.one)
    assert harness.pass_s(0.0) == []
    os.write(writing, b".")
    assert harness.pass_s(0.0) == ["one"]
    harness.loop.remove(reading)
    harness.loop.remove(reading)
    assert harness.pass_s(0.0) == []
    os.close(reading)
    os.close(writing)


def test_events_have_the_time_at_which_they_were_posted(harness):
    harness.loop.post(ev.HungUp, 7)
    harness.now += 1.0
    harness.loop.post(ev.StopAsked, patient=True)
    assert list(harness.loop.events) == [ev.HungUp(100.0, 7), ev.StopAsked(101.0, True)]
