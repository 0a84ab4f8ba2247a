"""Where the time of a run went, by what Linux counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.server.canary import neighbours
from rpcsys.server.canary.neighbours import Counters, Neighbours, fastest_cpu, spent

NONE = Counters(0.0, 0.0, 0.0)
seconds = st.floats(0, 10)


def machine(tmp_path, *, waited=None, cpu_stat=None, ticks=None):
    """A /proc and a /sys with these files."""
    files = {
        "proc/thread-self/schedstat": waited,
        "proc/self/cgroup": "5:cpu,cpuacct:/boards/one\n0::/\n",
        "proc/self/mountinfo": "1 2 0:3 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
        "sys/fs/cgroup/cpu/boards/one/cpu.stat": cpu_stat,
        "proc/stat": ticks,
    }
    for path, text in files.items():
        if text is not None:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
    return Neighbours(str(tmp_path))


def test_counters_of_a_machine(tmp_path):
    stat = "cpu  100 10 50 9999 5 1 2 7 0 0\ncpu0 1 1 1\n"
    found = machine(
        tmp_path, waited="5 2000000000 3\n", cpu_stat="nr_periods 5\nthrottled_time 250000000\n", ticks=stat
    )
    assert found.read() == Counters(2.0, 0.25, pytest.approx(1.70))


def test_a_machine_that_shows_nothing(tmp_path):
    assert Neighbours(str(tmp_path)).read() == Counters(None, 0.0, None)
    assert machine(tmp_path, waited="", cpu_stat="throttled_usec soon\n", ticks="cpu\n").read() == Counters(
        None, 0.0, None
    )


def test_quotas_of_all_cgroups_above_count(tmp_path):
    found = machine(tmp_path, cpu_stat="throttled_usec 1000000\n")
    (tmp_path / "sys/fs/cgroup/cpu/boards/cpu.stat").write_text("throttled_usec 500000\n")
    assert Neighbours(str(tmp_path)).read().throttled == pytest.approx(1.5)
    assert found.read().throttled == pytest.approx(1.0)  # the one above came later


def test_a_run_that_nobody_disturbs():
    assert spent(0.3, 0.3, NONE, Counters(0.0, 0.0, 0.3)) == (0.3, 0.3, 0.0, 0.0, 0.0)


def test_neighbours_are_told_from_a_quota():
    waits = spent(0.3, 0.2, NONE, Counters(0.1, 0.0, 0.5))
    assert (waits.others, waits.throttled, waits.stalled) == (pytest.approx(0.1), 0.0, pytest.approx(0.0))
    throttled = spent(0.3, 0.2, NONE, Counters(0.1, 0.1, 0.2))  # a kernel that counts throttled time as waiting, too
    assert (throttled.others, throttled.stalled) == (pytest.approx(0.0), pytest.approx(0.1))
    newer = spent(0.3, 0.2, NONE, Counters(0.0, 0.1, 0.2))  # one that does not
    assert (newer.others, newer.stalled) == (pytest.approx(0.0), pytest.approx(0.1))
    both = spent(0.4, 0.2, NONE, Counters(0.2, 0.1, 0.5))
    assert (both.others, both.stalled) == (pytest.approx(0.1), pytest.approx(0.1))


def test_a_stopped_process_is_the_boards_own_slowness():
    stopped = spent(0.3, 0.2, NONE, Counters(0.0, 0.0, 0.2))
    assert (stopped.others, stopped.stalled) == (0.0, pytest.approx(0.1))


def test_without_counters_of_waiting_the_busy_time_of_others_tells_it():
    none = Counters(None, 0.0, 0.0)
    assert spent(0.3, 0.2, none, Counters(None, 0.0, 0.25)).others == pytest.approx(0.05)
    assert spent(0.3, 0.2, none, Counters(None, 0.0, 0.9)).others == pytest.approx(0.1)


@given(seconds, seconds, *[st.builds(Counters, st.none() | seconds, seconds, st.none() | seconds)] * 2)
def test_no_part_is_negative_or_longer_than_the_run(wall, cpu, before, after):
    found = spent(wall, cpu, before, after)
    assert all(part >= 0 for part in found)
    assert found.stalled >= 0
    assert found.others + found.throttled <= max(0.0, wall - cpu) + 1e-9


def test_a_run_is_on_the_fastest_cpu(tmp_path):
    for cpu, capacity in enumerate((400, 1024, 1024, 400)):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}"
        folder.mkdir(parents=True)
        (folder / "cpu_capacity").write_text(f"{capacity}\n")
    assert fastest_cpu((0, 1, 2, 3), str(tmp_path)) == 2
    assert fastest_cpu((0, 3), str(tmp_path)) == 3
    assert fastest_cpu((0, 1), "/no/such/folder") == 1


def test_this_machine_counts():
    before = Neighbours().read()
    assert before.busy is None or before.busy > 0
    assert neighbours.spent(0.1, 0.1, before, Neighbours().read()).wall == 0.1
