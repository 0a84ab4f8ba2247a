"""Imports before sessions, and the release of pages that loading has touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.native import ROOT, bare, compiled

CODE = """
import ctypes, json
from rpcsys.server.sandbox import preload

def resident():
    total = 0
    with open("/proc/self/smaps") as maps:
        inside = False
        for line in maps:
            fields = line.split()
            if not fields[0].endswith(":"):
                inside = line.rstrip().endswith("libbig.so")
            elif inside and fields[0] == "Rss:":
                total += int(fields[1]) << 10
    return total

library = ctypes.CDLL(sys.argv[1])
library.total.restype = ctypes.c_long
def use():
    library.set(41)
    return library.total(), library.get()
first, before = use(), resident()
released, after = preload.release_pages(("libbig",)), resident()
again = use()
print(json.dumps([first, before, released, after, again, preload.release_pages(("libnone",))]))
"""

BIG = """
asm(".section .rodata\\ntable: .fill 1 << 22, 1, 1\\n.previous");
extern const char table[1 << 22] __attribute__((visibility("hidden")));
static long value = 7;
const char *const relocated[4096] = {[0 ... 4095] = table};
long total(void) {
    long sum = 0;
    for (int i = 0; i < 1 << 22; i += 4096) sum += table[i];
    for (int i = 0; i < 4096; i++) sum += relocated[i] == table;
    return sum;
}
void set(long to) { value = to; }
long get(void) { return value; }
"""


def big_library(folder: Path, compiler: Sequence[str] = ("cc",)) -> Path:
    """The library `BIG`, written to the disk: pages that are not there yet count as changed."""
    source = folder / "big.c"
    source.write_text(BIG)
    library = compiled(source, folder / "libbig.so", compiler=compiler)
    with library.open("rb") as file:
        os.fsync(file.fileno())
    return library


def test_clean_pages_are_released_and_written_ones_stay(tmp_path: Path) -> None:
    library = big_library(tmp_path)
    first, before, released, after, again, none = json.loads(bare(ROOT, CODE, library))
    assert first == again == [1024 + 4096, 41]
    assert before > 4 << 20
    if not released:
        pytest.skip("this file system keeps its files in memory: their pages are never clean")
    assert released >= 4 << 20
    assert after < 1 << 20
    assert none == 0


AHEAD = """
import json, os
from rpcsys.server.sandbox import messages, preload

os.environ["OMP_NUM_THREADS"] = "7"
os.environ.pop("MKL_NUM_THREADS", None)
ours, theirs = messages.pair()
settings = {"tvm": "off", "tvm_library": None, "secure": False}
settings.update(preload=["counting"], imports=["failing", "never"])
try:
    preload.everything(settings, theirs)
    error = ""
except ImportError as caught:
    error = str(caught)
theirs.close()
reported = []
while data := ours.recv(10000):
    reported.append(json.loads(data)["importing"])
import counting
print(json.dumps([reported, error, counting.THREADS, os.environ["OMP_NUM_THREADS"], "MKL_NUM_THREADS" in os.environ]))
"""


def test_imports_are_reported_use_one_thread_and_stop_at_the_first_failure(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text("import os\nTHREADS = os.environ['OMP_NUM_THREADS']\n")
    (tmp_path / "failing.py").write_text("1 / 0\n")
    reported, error, threads, kept, leaked = json.loads(
        bare(ROOT, f"import sys\nsys.path.insert(1, {str(tmp_path)!r})\n" + AHEAD)
    )
    assert reported == ["--preload counting", "--import failing"]
    assert error == "--import failing: ZeroDivisionError: division by zero"
    assert (threads, kept, leaked) == ("1", "7", False)


HOOKS = """
import os, sys
found, register = set(), os.register_at_fork

def note(**hooks):
    found.add(sys._getframe(1).f_globals["__name__"])
    register(**hooks)

os.register_at_fork = note
from rpcsys.server.sandbox import preload, zygote
from rpcsys.server.session import tvm_package

print(tvm_package.load(), preload.has_hooks(), sorted(found - {"threading", "logging"}))
import random
print(preload.has_hooks())
"""


def test_modules_of_a_fresh_zygote_do_nothing_after_a_fork() -> None:
    pytest.importorskip("tvm")
    done = subprocess.run([sys.executable, "-c", HOOKS], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.stdout.splitlines() == ["True False []", "True"], done.stderr
