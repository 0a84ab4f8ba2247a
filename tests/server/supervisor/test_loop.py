"""What the loop calls, and when."""

from __future__ import annotations

import os
import time

import pytest

from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import Loop


class Scene:
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
def scene():
    made = Scene()
    yield made
    made.loop.close()


def test_what_is_due_is_called_once(scene):
    scene.loop.call_at(101.0, scene.one)
    scene.loop.call_at(102.0, scene.two)
    assert scene.pass_s(0.9) == []
    assert scene.pass_s(0.1) == ["one"]
    assert scene.pass_s(5.0) == ["two"]
    assert scene.pass_s(5.0) == []


def test_a_time_set_anew_replaces_the_one_before(scene):
    scene.loop.call_at(101.0, scene.one)
    scene.loop.call_at(103.0, scene.one)
    assert scene.pass_s(1.0) == []
    assert scene.pass_s(2.0) == ["one"]
    scene.loop.call_at(104.0, scene.one)
    scene.loop.call_at(None, scene.one)
    scene.loop.call_at(None, scene.two)
    assert scene.pass_s(9.0) == []


def test_one_callback_can_put_off_another(scene):
    def put_off() -> None:
        scene.loop.call_at(None, scene.one)
        scene.loop.call_at(200.0, scene.two)

    scene.loop.call_at(100.0, put_off)
    scene.loop.call_at(100.0, scene.one)
    scene.loop.call_at(100.0, scene.two)
    assert scene.pass_s(0.0) == []
    assert scene.pass_s(100.0) == ["two"]


def test_a_callback_can_set_its_next_time(scene):
    def again() -> None:
        scene.one()
        scene.loop.call_at(scene.now + 1.0, again)

    scene.loop.call_at(100.0, again)
    assert [scene.pass_s(1.0).copy() for _ in range(3)] == [["one"]] * 3


def test_a_wait_ends_when_something_is_due():
    loop, called = Loop(), []
    loop.call_at(loop.now() + 0.05, lambda: called.append(time.monotonic()))
    while not called:
        loop.run_once(30.0)
    loop.close()


def test_descriptors_are_called_until_they_are_removed(scene):
    reading, writing = os.pipe()
    scene.loop.add(reading, scene.one)
    assert scene.pass_s(0.0) == []
    os.write(writing, b".")
    assert scene.pass_s(0.0) == ["one"]
    scene.loop.remove(reading)
    scene.loop.remove(reading)
    assert scene.pass_s(0.0) == []
    os.close(reading)
    os.close(writing)


def test_events_have_the_time_at_which_they_were_posted(scene):
    scene.loop.post(ev.HungUp, 7)
    scene.now += 1.0
    scene.loop.post(ev.StopAsked, patient=True)
    assert list(scene.loop.events) == [ev.HungUp(100.0, 7), ev.StopAsked(101.0, True)]
