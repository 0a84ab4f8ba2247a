"""Measurements of candidates: TVM's rules for repeats, both ways to measure, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ModelError, NativeError, RemoteArgumentError, RemoteFunctionError
from rpcsys.ffi import library
from rpcsys.server.session import candidates
from rpcsys.server.session.candidates import Candidates, Evaluation, evaluate, evaluation
from rpcsys.server.session.directory import Directory

SOURCE = """
#include <stdint.h>
#include <tvm/ffi/c_api.h>
static int64_t calls;
int __tvm_ffi_main(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
    ++calls;
    if (count == 1) *(float*)((DLTensor*)((char*)args[0].v_ptr + (args[0].type_index == 70 ? 24 : 0)))->data = calls;
    return count == 1 ? 0 : -1;
}
"""
ONE = [["float32", [4]]]
QUICK = {"number": 1, "repeat": 3, "min_repeat_ms": 0}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A library whose main takes one array and counts its calls in it."""
    libinfo = pytest.importorskip("tvm_ffi.libinfo")
    folder = tmp_path_factory.mktemp("candidate")
    (folder / "main.c").write_text(SOURCE)
    paths = [f"-I{path}" for path in libinfo.include_paths()]
    subprocess.run(["cc", "-shared", "-fPIC", *paths, "-o", "main.so", "main.c"], cwd=folder, check=True)
    return (folder / "main.so").read_bytes()


@pytest.fixture(params=["tvm", "loop"])
def measured(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Candidates:
    """A session's candidates, measured by TVM's runtime, and without it."""
    if request.param == "loop":
        monkeypatch.setattr(library, "has_runtime", lambda: False)
    elif not library.has_runtime():
        pytest.skip("TVM's runtime is not installed")
    return Candidates(Directory(str(tmp_path)))


class FakeClock:
    """Calls that take ``each_s``, and counts of them."""

    def __init__(self, each_s: float) -> None:
        self.each_s = each_s
        self.numbers: list[int] = []
        self.slept: list[float] = []

    def run(self, number: int) -> float:
        self.numbers.append(number)
        return number * self.each_s


def test_one_call_is_not_timed_and_each_repeat_has_its_calls() -> None:
    clock = FakeClock(0.5)
    assert evaluate(clock.run, Evaluation(number=4, repeat=3, min_repeat_ms=0)) == [0.5, 0.5, 0.5]
    assert clock.numbers == [1, 4, 4, 4]


def test_more_calls_are_made_until_they_take_long_enough_and_stay_more() -> None:
    clock = FakeClock(1e-3)
    assert evaluate(clock.run, Evaluation(number=2, repeat=2, min_repeat_ms=100)) == pytest.approx([1e-3, 1e-3])
    assert clock.numbers == [1, 2, 101, 101]


@given(st.floats(1e-8, 1.0), st.integers(1, 1000), st.integers(0, 2000))
def test_the_shortest_time_is_reached(each_s: float, number: int, shortest: int) -> None:
    clock = FakeClock(each_s)
    [result] = evaluate(clock.run, Evaluation(number=number, repeat=1, min_repeat_ms=shortest))
    assert result == pytest.approx(each_s)
    assert clock.numbers[-1] * each_s * 1e3 >= shortest * 0.999 or clock.numbers[-1] == candidates.MAX_NUMBER
    assert len(clock.numbers) < 60


def test_a_clock_that_shows_no_time_is_asked_a_hundred_times() -> None:
    clock = FakeClock(0.0)
    assert evaluate(clock.run, Evaluation(number=3, repeat=1, min_repeat_ms=1)) == [0.0]
    assert clock.numbers == [1, *[3] * 101]


def test_a_pause_follows_each_repeat_and_the_caches_are_flushed_before_it() -> None:
    clock, flushed = FakeClock(0.5), []
    wanted = Evaluation(number=1, repeat=2, min_repeat_ms=0, cooldown_ms=250)
    evaluate(clock.run, wanted, lambda: flushed.append(len(clock.numbers)), clock.slept.append)
    assert clock.slept == [0.25, 0.25]
    assert flushed == [1, 2]


def test_a_candidate_is_measured_with_each_copy_of_its_arguments(measured: Candidates, code: bytes) -> None:
    answer = measured.measure(code, "main", ONE, {**QUICK, "copies": 2, "flush_caches": True})
    assert len(answer["results"]) == 6
    assert all(0 < seconds < 1 for seconds in answer["results"])


def test_the_next_candidate_is_another_library(measured: Candidates, code: bytes) -> None:
    for _ in range(3):
        measured.measure(code, "main", ONE, QUICK)
        [array] = measured._arguments._kept.values()
        assert memoryview(array.data).cast("f")[0] == 4  # one call, and three that are timed


def test_a_candidate_that_fails_leaves_the_session_as_it_was(measured: Candidates, code: bytes) -> None:
    for function, arguments in (("main", ONE * 2), ("none", ONE)):
        with pytest.raises(NativeError):
            measured.measure(code, function, arguments, QUICK)
    with pytest.raises(ModelError, match="not an ELF shared library"):
        measured.measure(b"no library", "main", ONE, QUICK)
    assert len(measured.measure(code, "main", ONE, QUICK)["results"]) == 3


def test_a_device_needs_tvms_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: bytes) -> None:
    monkeypatch.setattr(library, "has_runtime", lambda: False)
    with pytest.raises(RemoteFunctionError, match="no libtvm_runtime"):
        Candidates(Directory(str(tmp_path))).measure(code, "main", ONE, QUICK, "opencl:0")


@pytest.mark.parametrize(
    "options",
    [{"number": 0}, {"number": 1.5}, {"number": True}, {"repeat": 30_001}, {"min_repeat_ms": -1}, {"copies": 0},
     {"cooldown_ms": 3_600_001}, {"repeat": 300, "copies": 101}, {"fast": True}, {"number": "3"}],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RemoteArgumentError):
        evaluation(options)


def test_the_caches_are_as_large_as_linux_says(tmp_path: Path) -> None:
    assert candidates.cache_bytes(str(tmp_path)) == 32 << 20
    for index, size in enumerate(("32K", "1024K", "nonsense")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(size + "\n")
    assert candidates.cache_bytes(str(tmp_path)) == 2 << 20
