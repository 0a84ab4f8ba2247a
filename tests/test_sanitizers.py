"""The C library under sanitizers: whatever its tests and the fuzzer do, no memory is misused."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rpcsys import stream
from tests.device_files import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(stream.speedups is None, reason="this Python does not take the library"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc"),
]

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
#: Of each file, the tests with the library. A sanitizer keeps freed memory for some time: growth says nothing.
TESTS = "not python and not grow and not hops"
FILES = (
    "tests/test_stream.py",
    "tests/test_speedups.py",
    "tests/test_misuse.py",
    "tests/wire/test_reader.py",
    "tests/client/calls",
    "tests/server/session/test_session.py",
    "tests/server/session/test_incoming.py",
    "tests/server/session/test_watchdog.py",
)


class Sanitized:
    """A copy of the tree with the library compiled with sanitizers, and with faults (tests/faults.h)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("rpcsys", "tests", "fuzz", "native"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        sources = [str(file) for file in sorted((ROOT / "native").glob("*.c"))]
        flags = shlex.split((ROOT / "native" / "flags").read_text())
        include = ["-I", sysconfig.get_path("include"), "-I", str(ROOT / "native")]
        faults = ["-include", str(ROOT / "tests" / "faults.h"), str(ROOT / "tests" / "faults.c")]
        library = str(folder / "rpcsys" / "speedups.abi3.so")
        subprocess.run(["gcc", *flags, *SANITIZERS, *include, *faults, *sources, "-o", library], check=True)

    def run(self, *words: str) -> None:
        """Run Python in the copy. Its children load the same library, and report to the same files."""
        preloaded = [
            subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
            for name in ("libasan.so", "libubsan.so")
        ]
        reports = f"log_path={self._folder / 'report'}"
        env = {
            **os.environ,
            "LD_PRELOAD": ":".join(preloaded),
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(self._folder),
            # Python itself does not free all at its end.
            "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:{reports}",
            "UBSAN_OPTIONS": f"print_stacktrace=1:{reports}",
        }
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self._folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        found = [report.read_text(errors="replace") for report in sorted(self._folder.glob("report.*"))]
        assert not found, "\n\n".join(report[:5000] for report in found)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    return Sanitized(tmp_path_factory.mktemp("sanitized"))


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:rerunfailures")


def test_the_sanitizers_find_what_is_wrong(sanitized: Sanitized) -> None:
    """A frame that reads beyond its memory is reported, so that silence means something."""
    wrong = "import ctypes, sys; from rpcsys.stream import speedups; print(speedups.__file__)\n"
    wrong += "block = speedups.Block(); ctypes.memset(id(block), 1, 1000)"
    with pytest.raises(AssertionError, match="heap-buffer-overflow"):
        sanitized.run("-c", wrong)
    for report in sanitized._folder.glob("report.*"):
        report.unlink()


def test_the_tests_of_the_library(sanitized: Sanitized) -> None:
    sanitized.run(*PYTEST, "-n", "2", "-k", TESTS, *FILES)


def test_each_failing_call(sanitized: Sanitized) -> None:
    sanitized.run(*PYTEST, "tests/test_faults.py")


def test_the_fuzzer(sanitized: Sanitized) -> None:
    sanitized.run("-m", "fuzz", "--target", "streams", "--seconds", "40")
