"""Limits of CPUs and memory, in processes that have them."""

import json
import os
import platform
import subprocess
import sys

import pytest

from rpcsys.server.sandbox import limits

PREAMBLE = "import json, mmap, os, threading, time\nfrom rpcsys.server.sandbox import limits\n"


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU here")
def test_every_thread_is_restricted_to_the_cpus_and_may_use_fewer():
    code = """
cpus = sorted(os.sched_getaffinity(0))
done = threading.Event()
other = threading.Thread(target=done.wait)
other.start()
first = limits.keep_on([os.getpid()], {cpus[0]})
tasks = [int(task) for task in os.listdir("/proc/self/task")]
found = [sorted(os.sched_getaffinity(task)) for task in tasks]
again = limits.keep_on([os.getpid()], set(cpus))
narrow = [sorted(os.sched_getaffinity(task)) for task in tasks]
os.sched_setaffinity(other.native_id, cpus)
strayed = limits.keep_on([os.getpid()], {cpus[0]})
done.set()
print(json.dumps([cpus[0], first, found, again, narrow, strayed]))
"""
    first, *results = run(code)
    assert results == [True, [[first]] * 2, False, [[first]] * 2, True]


def test_memory_beyond_the_limit_is_a_memory_error_and_files_do_not_count():
    code = """
limits.allow_memory(64 << 20)
kept, refused = [], ""
try:
    for _ in range(200):
        kept.append(bytearray(1 << 20))
except MemoryError as error:
    refused = limits.hint("MemoryError")
count = len(kept)
kept.clear()
with open("/proc/self/exe", "rb") as file:
    mapped = len(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
print(json.dumps([count, refused, mapped > 0, len(bytearray(1 << 20))]))
"""
    count, refused, mapped, after = run(code)
    assert 32 < count <= 64
    assert refused == "; the session's memory limit of 64 MB was hit (the server's --session-memory)"
    assert mapped
    assert after == 1 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_kept_and_that_touches_no_page():
    """In pages: those of the first block after the call, those of the call, and those of a block after another one."""
    code = """
import resource

def touched(act):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    act()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def block():
    bytearray(16 << 20)

block()
kept = touched(limits.keep_freed_memory)
print(json.dumps([kept, touched(block), touched(block)]))
"""
    kept, first, second = run(code)
    assert kept < 100
    assert first > 4000
    assert second < 100


@pytest.mark.parametrize(
    ("size", "text"), [(512 << 20, "512 MB"), (2 << 30, "2 GB"), (1536 << 20, "1536 MB"), (33333333, "33333333 bytes")]
)
def test_sizes_are_formatted_for_people(size, text):
    assert limits.describe(size) == text


def test_an_error_has_a_hint_only_with_a_limit():
    assert limits.hint("MemoryError") == ""


@pytest.mark.parametrize(
    ("limit_s", "longest_s", "advice"),
    [
        (5, None, "ask for a longer session_timeout"),
        (5, 60, "ask for a longer session_timeout (this key allows 60 s)"),
        (60, 60, "no session of this key may last longer than 60 s (the tracker's --max-session)"),
        (59, 60, "no session of this key may last longer than 60 s (the tracker's --max-session)"),
    ],
)
def test_nobody_is_advised_to_ask_for_more_than_a_key_allows(limit_s, longest_s, advice):
    assert limits.longer(limit_s, longest_s) == advice
