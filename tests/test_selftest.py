"""The self-test's findings on boards that work and on boards that do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rpcsys import selftest
from rpcsys.ffi import library
from rpcsys.selftest import BROKEN, MISSING, OK, Finding
from rpcsys.server import capabilities
from tests.native import FUNCTIONS, compiled


def findings(check, *arguments: str) -> dict[str, Finding]:
    return {finding.what: finding for finding in selftest._guarded(check, arguments)}


@pytest.mark.live
def test_a_working_board_can_serve() -> None:
    command = [sys.executable, "-m", "rpcsys.server", "--self-test"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "this board can serve"
    assert {line.split()[0] for line in lines[:-1]} <= {OK, MISSING}
    assert any(line.split()[:2] == [OK, "session"] for line in lines)


def test_a_missing_tracker_is_broken(capsys: pytest.CaptureFixture) -> None:
    found = findings(selftest._tracker, "--key", "k", "--tracker", "127.0.0.1:1")
    assert found["tracker"].state == BROKEN
    assert "127.0.0.1:1" in found["tracker"].says
    assert findings(selftest._tracker) == {}


def test_a_board_with_one_broken_check_cannot_serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(selftest, "_CHECKS", (selftest._board, selftest._standard_library))
    assert selftest.run([]) == 0
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert selftest.run([]) == 1
    output = capsys.readouterr().out
    assert "broken   ctypes" in output
    assert "Buildroot: build python3 after libffi" in output
    assert output.endswith("this board cannot serve: 1 broken\n")


@pytest.mark.parametrize(("without", "state"), [("", OK), ("they are not compiled", MISSING)])
def test_speedups_that_are_not_in_use_are_missing(without: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcsys.compiled.WITHOUT", without)
    assert findings(selftest._speedups)["speedups"].state == state


def test_a_check_that_raises_is_a_finding() -> None:
    def _strange(arguments):
        raise OSError("no /proc here")
        yield

    assert findings(_strange) == {"strange": Finding(BROKEN, "strange", "OSError: no /proc here")}


def test_a_noexec_or_full_folder_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    class Mounted:
        def __init__(self, path: str) -> None:
            self.f_flag, self.f_bavail, self.f_frsize = os.ST_NOEXEC, 1 << 30, 1

    monkeypatch.setattr(os, "statvfs", Mounted)
    assert "noexec" in findings(selftest._folder)["folder"].says
    monkeypatch.setattr(os, "statvfs", real)
    monkeypatch.setattr(selftest, "_LITTLE", 1 << 60)
    assert findings(selftest._folder)["folder"].state == BROKEN


def test_a_library_that_does_not_load_is_broken(tmp_path: Path) -> None:
    (tmp_path / library.FFI).write_bytes(b"no library")
    found = findings(selftest._tvm, "--tvm-library", str(tmp_path))
    assert found[library.FFI].state == BROKEN
    assert "invalid ELF header" in found[library.FFI].says or "too short" in found[library.FFI].says
    assert found[library.RUNTIME].state == MISSING


def test_a_missing_dependency_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        returncode, stderr = (1, "OSError: libstdc++.so.6: cannot open shared object file: No such file or directory\n")

    monkeypatch.setattr(selftest, "_run_apart", lambda *_: Done)
    assert selftest._loaded("a.so", ["/a.so"]).says.endswith(
        "apt-get install libstdc++6; Buildroot: BR2_TOOLCHAIN_BUILDROOT_CXX"
    )


def test_a_library_that_ends_the_process_is_broken(tmp_path: Path) -> None:
    source = tmp_path / "crash.c"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) static void crash(void) { abort(); }")
    found = findings(selftest._drivers, f"--load-library={compiled(source, tmp_path / 'crash.so')}")
    assert found["crash.so"].state == BROKEN
    assert "ended the process" in found["crash.so"].says
    good = compiled(FUNCTIONS, tmp_path / "good.so")
    assert findings(selftest._drivers, "--load-library", str(good))["good.so"].state == OK


def test_a_server_that_does_not_start_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_SERVE", "import sys; sys.exit(3)")
    assert findings(selftest._session)["session"].says == "the server ended with status 3"
    monkeypatch.setattr(selftest, "_CHECK_TIMEOUT_S", 1)
    monkeypatch.setattr(selftest, "_SERVE", "import time; time.sleep(600)")
    assert findings(selftest._session)["session"].says == "the server is not ready after 1 s"
    monkeypatch.setattr(
        selftest, "_SERVE", "import sys, time; print('tired', file=sys.stderr, flush=True); time.sleep(600)"
    )
    assert findings(selftest._session)["session"].says == "tired"


def test_missing_packages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "installed", lambda name: False)
    assert {finding.state for finding in findings(selftest._packages).values()} == {MISSING}
