"""The board's state, read from a folder with Linux's files, and what in it makes timings doubtful."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcsys.server.session import board_state as states
from rpcsys.server.session.board_state import board_state, changes, disturbances, since


def board(root: Path, mhz: float, governor: str, celsius: float, load: float = 0.5) -> str:
    """Make a folder with the files of Linux that are read; return its path."""
    for cpu in os.sched_getaffinity(0):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scaling_cur_freq").write_text(f"{int(mhz * 1000)}\n")
        (folder / "scaling_governor").write_text(governor + "\n")
    for zone, value in (("thermal_zone0", celsius - 5), ("thermal_zone1", celsius)):
        folder = root / "sys/class/thermal" / zone
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "temp").write_text(f"{int(value * 1000)}\n")
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/loadavg").write_text(f"{load} 0.40 0.30 1/200 4242\n")
    return str(root)


def write(root: Path, **files: str) -> str:
    """Write files below ``root``: ``proc__stat`` is proc/stat; return its path."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


def cpu_lines(user: int, idle: int, steal: int = 0) -> str:
    """/proc/stat with these ticks for each CPU that this process may use, and a busy one that it may not."""
    mine = sorted(os.sched_getaffinity(0))
    rows = [f"cpu{cpu} {user} 0 0 {idle} 5 0 0 {steal} 0 0" for cpu in mine]
    return "\n".join(["cpu  9 9 9 9 9 9 9 9 0 0", *rows, f"cpu{max(mine) + 1} 999999 0 0 0 0 0 0 0 0 0", "intr 5"])


def test_the_boards_state_is_read(tmp_path: Path) -> None:
    state = board_state(board(tmp_path, 1512, "ondemand", 61.5))
    cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
    assert state == {
        "cpu_mhz": dict.fromkeys(cpus, 1512.0),
        "governor": dict.fromkeys(cpus, "ondemand"),
        "temperature_c": 61.5,
        "load": 0.5,
        "running": 0,
    }


def test_missing_files_are_omitted(tmp_path: Path) -> None:
    assert board_state(str(tmp_path)) == {}


def test_a_file_without_a_number_is_omitted(tmp_path: Path) -> None:
    root = board(tmp_path, 1000, "performance", 40)
    for path in tmp_path.glob("sys/class/thermal/*/temp"):
        path.write_text("unknown\n")
    assert "temperature_c" not in board_state(root)


def test_this_machines_state_is_read() -> None:
    assert board_state()["load"] >= 0


@pytest.mark.parametrize(
    ("mhz", "governor", "celsius", "expected"),
    [
        (1500, "ondemand", 50, []),
        (1450, "ondemand", 59, []),
        (1200, "ondemand", 50, ["from 1500 to 1200 MHz"]),
        (1500, "powersave", 50, ["from ondemand to powersave"]),
        (1500, "ondemand", 61, ["warmed by 11 degrees"]),
    ],
)
def test_changes_are_warnings(tmp_path: Path, mhz: float, governor: str, celsius: float, expected: list[str]) -> None:
    before = board_state(board(tmp_path, 1500, "ondemand", 50))
    after = board_state(board(tmp_path, mhz, governor, celsius))
    lines = changes(before, after)
    per_cpu = len(os.sched_getaffinity(0))
    assert len(lines) == (len(expected) * per_cpu if expected and "warmed" not in expected[0] else len(expected))
    for part in expected:
        assert part in lines[0]


def test_an_unknown_state_before_is_no_change() -> None:
    assert changes({}, {"temperature_c": 90.0, "load": 1.0}) == []


def test_more_of_the_state_is_read(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    root = write(
        tmp_path,
        **{
            f"sys__devices__system__cpu__cpu{first}__cpufreq__cpuinfo_max_freq": "1800000",
            f"sys__devices__system__cpu__cpu{first}__thermal_throttle__core_throttle_count": "3",
            f"sys__devices__system__cpu__cpu{first}__thermal_throttle__package_throttle_count": "4",
            "sys__class__thermal__cooling_device0__type": "cpufreq-cpu0",
            "sys__class__thermal__cooling_device0__cur_state": "0",
            "sys__class__thermal__cooling_device1__type": "pwm-fan",
            "sys__class__thermal__cooling_device1__cur_state": "4",
            "proc__pressure__cpu": "some avg10=12.50 avg60=1.00 avg300=0.00 total=9\nfull avg10=99.00",
            "proc__loadavg": "1.50 0.40 0.30 4/200 4242",
        },
    )
    assert board_state(root) == {
        "max_mhz": {str(first): 1800.0},
        "throttle_count": 7,
        "throttled": False,
        "pressure_cpu": 12.5,
        "load": 1.5,
        "running": 3,
    }


@pytest.mark.parametrize(
    ("kind", "state", "throttled"),
    [
        ("cpufreq-cpu0", "0", False), ("cpufreq-cpu0", "2", True), ("thermal-cpufreq-1", "1", True),
        ("Processor", "3", True), ("thermal-devfreq-0", "1", True), ("intel_powerclamp", "-1", False),
        ("pwm-fan", "4", None), ("LCD", "1", None), ("Processor", "?", False),
    ],
)  # fmt: skip
def test_a_cooling_device_throttles_unless_it_is_a_fan(
    tmp_path: Path, kind: str, state: str, throttled: bool | None
) -> None:
    folder = "sys__class__thermal__cooling_device0__"
    root = write(tmp_path, **{f"{folder}type": kind, f"{folder}cur_state": state})
    assert board_state(root).get("throttled") is throttled


@pytest.mark.parametrize(("bits", "throttled"), [("0", False), ("50000", False), ("50005", True), ("4", True)])
def test_a_raspberry_pis_firmware_says_whether_it_throttles_now(tmp_path: Path, bits: str, throttled: bool) -> None:
    root = write(tmp_path, **{"sys__devices__platform__soc__soc:firmware__get_throttled": bits})
    assert board_state(root)["throttled"] is throttled


def test_shares_of_the_time_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = len(os.sched_getaffinity(0))
    own = iter([1.0, 1.0 + cpus])
    monkeypatch.setattr(states.os, "times", lambda: (next(own), 0.0, 0.0, 0.0, 0.0))
    before = board_state(write(tmp_path, proc__stat=cpu_lines(100, 100, 0)))
    after = board_state(write(tmp_path, proc__stat=cpu_lines(400, 280, 20)))
    found = since(before, after)
    assert found["others_cpu"] == pytest.approx(0.4)  # each CPU: 5 s, of which 3 busy, 1 of them its own
    assert found["steal"] == pytest.approx(0.04)
    assert "others_cpu" not in after


def test_no_shares_of_a_time_that_is_too_short(tmp_path: Path) -> None:
    before = board_state(write(tmp_path, proc__stat=cpu_lines(100, 100)))
    after = board_state(write(tmp_path, proc__stat=cpu_lines(102, 100)))
    assert "others_cpu" not in since(before, after) or len(os.sched_getaffinity(0)) >= 5
    assert since({}, {"load": 1.0}) == {"load": 1.0}


def test_throttling_in_between_is_seen(tmp_path: Path) -> None:
    assert since({"throttle_count": 4}, {"throttle_count": 5, "throttled": False})["throttled"] is True
    assert since({"throttle_count": 5}, {"throttle_count": 5, "throttled": False})["throttled"] is False
    assert "throttled" not in since({}, {"throttle_count": 5})


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ({}, {"others_cpu": 0.34}, "other processes took 34% of the CPUs' time"),
        ({}, {"others_cpu": 0.05, "steal": 0.01}, None),
        ({}, {"steal": 0.05}, "the hypervisor gave 5%"),
        ({"pressure_cpu": 40.0}, {"pressure_cpu": 55.0}, "tasks waited for a CPU 40 % of the time"),
        ({"pressure_cpu": 2.0}, {"pressure_cpu": 55.0}, None),
        ({"throttled": True}, {"throttled": True}, "throttles its processors"),
        ({}, {"cpu_mhz": {"0": 600.0}, "max_mhz": {"0": 1800.0}, "governor": {"0": "ondemand"}}, "600 of 1800 MHz"),
        ({}, {"cpu_mhz": {"0": 600.0}, "max_mhz": {"0": 1800.0}, "governor": {"0": "performance"}}, None),
        ({}, {"cpu_mhz": {"0": 1790.0}, "max_mhz": {"0": 1800.0}, "governor": {"0": "ondemand"}}, None),
        ({}, {"cpu_mhz": {"0": 600.0}, "max_mhz": {"0": 1800.0}}, None),
    ],
)
def test_a_board_that_was_busy_throughout_is_a_warning(
    before: dict[str, Any], after: dict[str, Any], line: str | None
) -> None:
    found = disturbances(before, after)
    assert len(found) == (line is not None)
    assert all(line is not None and line in each and ": " in each for each in found)


def test_this_machines_others_are_measured() -> None:
    before = board_state()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        sum(range(10_000))
    found = since(before, board_state())
    assert 0 <= found["others_cpu"] <= 1
    assert found["cpu_s"]["own"] > before["cpu_s"]["own"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60) | st.from_regex(r"(cpu[01]( -?[0-9]{1,30}){0,9}\n?){1,3}"))
def test_any_text_in_the_files_is_no_error(tmp_path: Path, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    names = ("proc__stat", "proc__loadavg", "proc__pressure__cpu", "sys__class__thermal__cooling_device0__cur_state")
    first = min(os.sched_getaffinity(0))
    more = {
        f"sys__devices__system__cpu__cpu{first}__cpufreq__{name}": text
        for name in ("scaling_cur_freq", "scaling_governor")
    }
    root = write(tmp_path, sys__class__thermal__cooling_device0__type="Processor", **dict.fromkeys(names, text), **more)
    state = board_state(root)
    found = since(state, board_state(root))
    assert isinstance(disturbances(state, found) + changes(state, found), list)


def test_the_memory_of_this_process(tmp_path: Path) -> None:
    write(tmp_path, proc__self__status="Name:\tx\nVmHWM:\t   2048 kB\nRssAnon:\t    16 kB\nRssFile:\t 5 kB")
    assert states.process_memory(str(tmp_path)) == {"anonymous": 16 << 10, "peak": 2048 << 10}
    assert states.process_memory(str(tmp_path / "gone")) == {}
    assert 0 < states.process_memory()["anonymous"] <= states.process_memory()["peak"]


def test_seconds_of_cpus(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 1 20 5000 300 3 4 5 50 0\ncpu1 200 0 0 4000 0 0 0 0 0 0\nintr 1 2 3\n"
    (tmp_path / "proc" / "stat").write_text(text)
    tick = os.sysconf("SC_CLK_TCK")
    found = states.cpu_seconds([0, 1], str(tmp_path))
    assert (found["all"], found["busy"], found["steal"]) == (9633 / tick, 328 / tick, 5 / tick)
    assert states.cpu_seconds([0, 7], str(tmp_path)) is None
    assert states.cpu_seconds([0], str(tmp_path / "none")) is None
