"""Processes with nothing but the C library. What makes them has an interpreter of its own: it cannot fork any more."""

from __future__ import annotations

import json

from tests.native import ROOT, bare

PROGRAM = """
import ctypes, json, os, select, signal, sys
from rpcsys.server.sandbox import bare_process
from rpcsys.server.sandbox.processes import LIBC

kept = bytearray(64 << 20)
reading, writing = os.pipe()

def field(pid, name):
    with open(f"/proc/{pid}/status") as lines:
        return next(line.split()[1] for line in lines if line.startswith(name + ":"))

def waits(pid):
    for _ in range(3000):
        if field(pid, "State") in "SZ":
            return field(pid, "State") == "S"
        select.select([], [], [], 0.01)
"""


def run(program: str) -> object:
    return json.loads(bare(ROOT, PROGRAM + program))


def test_it_is_small_waits_for_the_end_of_a_pipe_and_exits() -> None:
    result = run("""
clone = bare_process.prepare(reading)
pids = [clone(signal.SIGCHLD) for _ in range(3)]
waiting = [waits(pid) for pid in pids]
small = [int(field(pid, "RssAnon")) < 300 for pid in pids]  # kB
own = int(field(os.getpid(), "RssAnon")) > 64 << 10
alive = [os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in pids]
print(json.dumps([waiting, small, own, alive, len(kept)]), flush=True)
for pid in pids:
    os.kill(pid, signal.SIGKILL)
""")
    assert result == [[True] * 3, [True] * 3, True, [True] * 3, 64 << 20]


def test_it_exits_when_the_last_writer_is_gone() -> None:
    result = run("""
keeper = os.fork()
if not keeper:
    os.close(reading)
    signal.pause()
os.close(writing)
clone = bare_process.prepare(reading)
pid = clone(signal.SIGCHLD)
lived = waits(pid)
os.kill(keeper, signal.SIGKILL)
print(json.dumps([lived, os.WEXITSTATUS(os.waitpid(pid, 0)[1])]))
""")
    assert result == [True, 255]


def test_it_leaves_alone_what_others_have_to_write() -> None:
    """An unbuffered stream would first write out a line-buffered standard output, whose buffer it does not have."""
    result = run("""
out = ctypes.c_void_p.in_dll(LIBC, "stdout")
LIBC.setvbuf(out, None, ctypes.c_int(1), ctypes.c_size_t(4096))
pid = bare_process.prepare(reading)(signal.SIGCHLD)
lived = waits(pid)
os.kill(pid, signal.SIGKILL)
print(json.dumps([lived, os.WTERMSIG(os.waitpid(pid, 0)[1])]))
""")
    assert result == [True, 9]


def test_an_impossible_one_is_an_error() -> None:
    result = run("""
clone = bare_process.prepare(reading)
try:
    clone(0x00020000 | 0x00000200 | signal.SIGCHLD)  # CLONE_NEWNS and CLONE_FS exclude each other
except OSError as error:
    print(json.dumps(error.errno))
""")
    assert result == 22


def test_a_descriptor_that_is_no_pipe_is_an_error() -> None:
    result = run("""
try:
    bare_process.prepare(77)
except OSError as error:
    print(json.dumps(error.errno))
""")
    assert result == 9
