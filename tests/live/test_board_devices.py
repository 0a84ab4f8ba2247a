"""Devices of a board from its drivers to a client: what a server announces, what a request can ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rpcsys
from rpcsys.errors import UnknownKey
from rpcsys.server.devices import board
from tests.live.daemons import Daemon, wait_free, wait_until
from tests.server.devices import fakes

BARE = ("--tvm", "off", "--preload", "none")
NAMES = ["cpu:0", "opencl:0", "opencl:1"]
START_S = 60.0


@pytest.fixture
def drivers(tmp_path: Path) -> dict[str, str]:
    """The environment of a board with an OpenCL driver that works, a Vulkan that hangs, and a CUDA that crashes."""
    folder = tmp_path / "drivers"
    folder.mkdir()
    fakes.library(folder, "libOpenCL.so.1", fakes.OPENCL)
    fakes.library(folder, "libvulkan.so.1", fakes.HANGS)
    fakes.library(folder, "libcuda.so.1", fakes.CRASHES)
    return {"LD_LIBRARY_PATH": str(folder), "RPCSYS_DEVICES": "opencl,vulkan,cuda"}


def queried(tracker: Daemon, *flags: str) -> str:
    command = [sys.executable, "-m", "rpcsys.query", "--host", "127.0.0.1", "--port", str(tracker.address[1]), *flags]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("proxied", [False, True])
def test_a_board_is_requested_by_a_device_and_drivers_that_hang_or_crash_are_named(daemons, drivers, proxied):
    tracker = daemons.tracker()
    daemons.server("k", *BARE, "--name", "plain", tracker=tracker)
    if proxied:
        server = daemons.behind(daemons.proxy("--tracker", tracker.where), "k", *BARE, flavour="ours", env=drivers)
        server.await_ready_line()
        wait_free(tracker, "k", 2, START_S)
    else:
        server = daemons.server("k", *BARE, tracker=tracker, offers=2, env=drivers)
    said = server.stderr()
    assert "the driver of vulkan (libvulkan.so.1) did not answer in 5 s: its devices are left out" in said
    assert "the driver of cuda (libcuda.so.1) ended its process without an answer: its devices are left out" in said
    assert "devices: cpu:0, opencl:0, opencl:1" in said
    with rpcsys.connect_tracker(tracker.where) as lab:
        for wanted in ("opencl", "opencl:1"):
            with lab.request("k", labels={"device": wanted}) as session:
                assert session.info["devices"] == NAMES
                assert [each["title"] for each in session.devices[1:]] == ["a GPU", "a CPU"]
                assert session.devices[1]["runtime"] == "OpenCL 3.0 fake"
            wait_free(tracker, "k", 2, START_S)
        with pytest.raises(UnknownKey, match="device=opencl:"):
            lab.request("k", labels={"device": "opencl:2"})
    assert ", ".join(NAMES) in queried(tracker)
    rows = json.loads(queried(tracker, "--json"))["servers"]
    assert sorted(row["devices"] for row in rows) == [["cpu:0"], NAMES]
    wait_until(lambda: "rpcsys-devices" not in commands(server), START_S, "no process of the search is left")


def commands(server: Daemon) -> str:
    return " ".join(" ".join(child.cmdline()) for child in server.children())


def test_a_client_that_comes_before_the_drivers_have_answered_learns_the_devices(daemons, drivers):
    server = daemons.server("", *BARE, env=drivers)
    assert "devices:" not in server.stderr()
    with rpcsys.connect(*server.address, timeout=START_S) as session:
        assert session.info["devices"] == NAMES


def test_a_server_that_is_stopped_meanwhile_leaves_no_process(daemons, drivers):
    server = daemons.server("", *BARE, env=drivers)
    assert "rpcsys-devices" in commands(server)
    assert server.terminate() == 0


@pytest.mark.parametrize("kind", ["opencl", "vulkan"])
def test_this_machines_drivers(daemons, kind):
    if kind not in board.drivers():
        pytest.skip(f"this machine has no {kind}; Debian: apt-get install pocl-opencl-icd mesa-vulkan-drivers")
    server = daemons.server("", *BARE, "--devices", kind)
    with rpcsys.connect(*server.address, timeout=START_S) as session:
        assert session.info["devices"][:2] == ["cpu:0", f"{kind}:0"]
        assert session.devices[1]["memory"] > 0
