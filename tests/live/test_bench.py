"""``rpcsys bench`` with a tracker and two boards: saved, compared, and a slower model found."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rpcsys.cli.commands import run_group
from rpcsys.client import connect_tracker
from tests.live.daemons import Daemon, Daemons

#: A function that waits, as fast as it is called: ``main`` of a library without any arguments.
SOURCE = r"""
#include <stdint.h>
#include <time.h>
int __tvm_ffi_main(void *self, const void *args, int32_t count, void *result) {
  struct timespec now, start;
  clock_gettime(CLOCK_MONOTONIC, &start);
  do clock_gettime(CLOCK_MONOTONIC, &now);
  while ((now.tv_sec - start.tv_sec) * 1000000 + (now.tv_nsec - start.tv_nsec) / 1000 < WAIT_US);
  return 0;
}
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Libraries of one name, by the microseconds that they wait: by the clock, so a slower machine is no slower cell.

    The step between them is larger than what a busy machine takes from a call that does nothing.
    """
    folder, found = tmp_path_factory.mktemp("waits"), {}
    (folder / "wait.c").write_text(SOURCE)
    for wait_us in (1000, 3000):
        path = found[wait_us] = folder / str(wait_us) / "wait.so"
        path.parent.mkdir()
        command = ["cc", "-shared", "-fPIC", f"-DWAIT_US={wait_us}", "-o", str(path), str(folder / "wait.c")]
        subprocess.run(command, check=True, timeout=60)
    return found


class Ended(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The command in this process, with short results: some are undisturbed, however busy this machine is."""
    monkeypatch.chdir(tmp_path)

    def run(tracker: Daemon, *words: object) -> Ended:
        status = run_group([*map(str, ("bench", "--tracker", tracker.where, "--min-repeat-ms", "0", *words))])
        return Ended(status, *capsys.readouterr())

    return run


def test_a_slower_model_is_found_and_an_unchanged_one_is_not(
    daemons: Daemons, libraries: dict[int, Path], bench: Callable[..., Ended], tmp_path: Path
) -> None:
    tracker = daemons.tracker()
    for key in ("rpi4", "edge"):
        daemons.server(key, "--name", f"{key}-1", "--preload", "none", tracker=tracker)
    repeat = ("--repeat", 15, "--sessions", 4)

    saved = bench(tracker, libraries[1000], *repeat, "--save", "base.json")
    assert saved.status == 0, saved.err
    lines = saved.out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["wait.so", "edge-1"], ["wait.so", "rpi4-1"]]
    table = json.loads((tmp_path / "base.json").read_text())
    assert [len(row["blocks"]) for row in table["rows"]] == [4, 4]
    assert min(min(block) for row in table["rows"] for block in row["blocks"]) >= 0.001

    same = bench(tracker, libraries[1000], *repeat, "--against", "base.json", "--least", "10%")
    assert (same.status, "slower by" in same.out) == (0, False), same.out + same.err

    slower = bench(tracker, libraries[3000], *repeat, "--against", "base.json", "--least", "10%", "--json")
    assert slower.status == 1, slower.out + slower.err
    verdicts = [row for row in map(json.loads, slower.out.splitlines()) if "outcome" in row]
    assert {(row["board"], row["outcome"]) for row in verdicts} == {("edge-1", "slower"), ("rpi4-1", "slower")}
    assert all(1.5 < row["shift"]["ratio"] < 2.5 for row in verdicts)
    assert "measuring 2 cells again" in slower.err


def test_a_board_that_is_drained_and_a_model_that_fails_are_rows(
    daemons: Daemons, libraries: dict[int, Path], bench: Callable[..., Ended]
) -> None:
    tracker = daemons.tracker()
    daemons.server("rpi4", "--name", "rpi4-1", "--preload", "none", tracker=tracker)
    daemons.server("edge", "--name", "edge-1", "--preload", "none", tracker=tracker)
    with connect_tracker(tracker.address) as connection:
        connection.drain("edge-1")
    words = ("--sessions", 2, "--repeat", 2)
    done = bench(tracker, libraries[1000], *words)
    assert done.status == 0, done.err
    assert "wait.so on edge: not measured: edge-1 is drained" in done.out
    none = bench(tracker, libraries[1000], *words, "--key", "rpi4", "--threads", "2")
    assert none.status == 1
    assert "nothing could be measured: wait.so has no number of threads to set" in none.err.splitlines()[-1]
    unknown = bench(tracker, libraries[1000], "--key", "rpi5")
    assert (unknown.status, unknown.err.count("\n")) == (1, 1)
    assert "no server offers 'rpi5'; there is edge, rpi4" in unknown.err
