"""The search: drivers that hang, crash and say nonsense cost their own devices alone."""

import json
import os

from rpcsys.server.devices import board, search
from rpcsys.server.devices.search import DriverQuestion, DriverSearch
from tests.live.daemons import wait_until
from tests.server.devices import fakes


def asked(**paths):
    return {kind: DriverQuestion(f"the driver of {kind}", [path]) for kind, path in paths.items()}


def found(one: DriverSearch) -> list:
    one.wait()
    return json.loads(one.devices().described)


def test_the_others_are_found_beside_drivers_that_fail_and_say_too_much(tmp_path):
    one = DriverSearch(
        asked(
            cuda=fakes.library(tmp_path, "lacks.so", "int cuInit() { return 0; }"),
            rocm=fakes.library(tmp_path, "fails.so", fakes.CUDA, "-DHIP", "-DSTATUS=3"),
            opencl=fakes.library(tmp_path, "works.so", fakes.OPENCL),
            vulkan=str(tmp_path / "absent.so"),
            openvino=fakes.library(tmp_path, "long.so", fakes.OPENVINO, "-DLONG"),
        )
    )
    names = [each["name"] for each in found(one)]
    assert names == ["cpu:0", "opencl:0", "opencl:1"]
    problems = "\n".join(sorted(one.problems))
    assert "the driver of cuda failed" in problems
    assert "the driver of rocm failed: hipInit failed with status 3: its devices are left out" in problems
    assert "the driver of vulkan failed" in problems
    assert "the driver of openvino answered too much" in problems
    assert len(one.problems) == 4
    wait_until(one.collect, 15, "all processes are collected")


def test_a_driver_that_hangs_is_killed_after_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "LIMIT_S", 2.0)
    hangs = fakes.library(tmp_path, "hangs.so", fakes.HANGS)
    crashes = fakes.library(tmp_path, "crashes.so", fakes.CRASHES)
    one = DriverSearch(asked(opencl=hangs, vulkan=crashes))
    pids = [each.pid for each in one._asked.values()]
    assert [each["name"] for each in found(one)] == ["cpu:0"]
    assert sorted(one.problems) == [
        "the driver of opencl did not answer in 2 s: its devices are left out",
        "the driver of vulkan ended its process without an answer: its devices are left out",
    ]
    wait_until(one.collect, 15, "all processes are collected")
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_without_a_driver_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(board, "drivers", dict)
    assert search.questions(None, None, ["lib.so"]) == {}
    one = DriverSearch({})
    assert one.over
    assert found(one)[0]["name"] == "cpu:0"


def test_only_wanted_kinds_are_asked(monkeypatch):
    monkeypatch.setattr(board, "drivers", lambda: {"cuda": "libcuda.so.1", "openvino": "libopenvino_c.so.2641"})
    assert list(search.questions((), None, [])) == []
    assert next(iter(search.questions(("openvino",), None, []))) == "openvino"
    assert list(search.questions(None, None, []))[:2] == ["cuda", "openvino"]
