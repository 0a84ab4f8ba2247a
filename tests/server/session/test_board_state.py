"""The board's state: what is read, and which changes make a figure doubtful."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rpcsys.server.session import board_state


def board(root: Path, mhz: float, governor: str, celsius: float, load: float = 0.5) -> str:
    """A folder that looks like the parts of Linux that are read."""
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


def test_reads_what_is_shown(tmp_path: Path) -> None:
    state = board_state.read(board(tmp_path, 1512, "ondemand", 61.5))
    cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
    assert state == {
        "cpu_mhz": dict.fromkeys(cpus, 1512.0),
        "governor": dict.fromkeys(cpus, "ondemand"),
        "temperature_c": 61.5,
        "load": 0.5,
    }


def test_leaves_out_what_is_not_shown(tmp_path: Path) -> None:
    assert board_state.read(str(tmp_path)) == {}


def test_a_file_that_is_no_number_is_not_shown(tmp_path: Path) -> None:
    root = board(tmp_path, 1000, "performance", 40)
    for path in tmp_path.glob("sys/class/thermal/*/temp"):
        path.write_text("unknown\n")
    assert "temperature_c" not in board_state.read(root)


def test_this_machine_can_be_read() -> None:
    assert board_state.read()["load"] >= 0


@pytest.mark.parametrize(
    ("mhz", "governor", "celsius", "said"),
    [
        (1500, "ondemand", 50, []),
        (1450, "ondemand", 59, []),
        (1200, "ondemand", 50, ["from 1500 to 1200 MHz"]),
        (1500, "powersave", 50, ["from ondemand to powersave"]),
        (1500, "ondemand", 61, ["warmed by 11 degrees"]),
    ],
)
def test_changes(tmp_path: Path, mhz: float, governor: str, celsius: float, said: list[str]) -> None:
    before = board_state.read(board(tmp_path, 1500, "ondemand", 50))
    after = board_state.read(board(tmp_path, mhz, governor, celsius))
    lines = board_state.changes(before, after)
    per_cpu = len(os.sched_getaffinity(0))
    assert len(lines) == (len(said) * per_cpu if said and "warmed" not in said[0] else len(said))
    for part in said:
        assert part in lines[0]


def test_nothing_known_before_is_no_change() -> None:
    assert board_state.changes({}, {"temperature_c": 90.0, "load": 1.0}) == []
