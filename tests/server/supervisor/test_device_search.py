"""The search beside the server's loop."""

from __future__ import annotations

import dataclasses

import pytest

from rpcsys.server.config import ServerConfig
from rpcsys.server.devices import board, search
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.device_search import DeviceSearch
from rpcsys.server.supervisor.loop import Loop
from tests.live.daemons import wait_until
from tests.server.devices import fakes


def begun(monkeypatch, drivers, **config) -> tuple[Loop, DeviceSearch, list]:
    monkeypatch.setattr(board, "drivers", lambda: drivers)
    loop, told = Loop(), []
    one = DeviceSearch(loop, dataclasses.replace(ServerConfig(), **config), lambda found: told.append(found.names))
    return loop, one, told


def answered(loop: Loop, one: DeviceSearch) -> ev.DevicesFound:
    one.start()
    while not loop.events:
        loop.run_once(1.0)
    (event,) = loop.events
    return event


def test_the_devices_are_told_before_the_event(monkeypatch, tmp_path):
    path = fakes.library(tmp_path, "libopenvino_c.so", fakes.OPENVINO)
    loop, one, told = begun(monkeypatch, {"openvino": path}, devices=("openvino",))
    assert one.needed
    assert told == [("cpu:0",)]
    event = answered(loop, one)
    assert event.names == ("cpu:0", "openvino:CPU", "openvino:GPU.0") == told[-1]
    assert event.problems == ()
    wait_until(lambda: loop.run_once(0.1) or not loop.timers, 15, "its processes are collected, and no timer is left")


@pytest.mark.parametrize("kinds", [(), None])
def test_none_is_needed_without_a_driver_or_a_wish(monkeypatch, kinds):
    _, one, told = begun(monkeypatch, {} if kinds is None else {"cuda": "libcuda.so.1"}, devices=kinds)
    assert not one.needed
    assert told[0][0] == "cpu:0"
    one.close()


def test_a_driver_that_hangs_is_waited_for_no_longer_than_its_time(monkeypatch, tmp_path):
    monkeypatch.setattr(search, "LIMIT_S", 1.0)
    loop, one, _ = begun(monkeypatch, {"opencl": fakes.library(tmp_path, "hangs.so", fakes.HANGS)}, devices=("opencl",))
    event = answered(loop, one)
    assert event.names == ("cpu:0",)
    assert any("opencl" in line and "did not answer in 1 s" in line for line in event.problems)


def test_a_server_that_ends_kills_what_it_asks(monkeypatch, tmp_path):
    _, one, _ = begun(monkeypatch, {"opencl": fakes.library(tmp_path, "hangs.so", fakes.HANGS)}, devices=("opencl",))
    one.start()
    one.close()
    assert one._search is not None
    wait_until(one._search.collect, 15, "all processes are collected")
