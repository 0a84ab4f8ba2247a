"""The capabilities that a root session keeps and loses, read from the kernel; no program gets any back."""

import json
import os
import subprocess
import sys

import pytest

from rpcsys.server.sandbox import privileges

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")

PROGRAM = """
import json, os, subprocess, sys
from rpcsys.server.sandbox import privileges

def sets():
    lines = [line.split() for line in open("/proc/self/status")]
    return {fields[0][:-1]: int(fields[1], 16) for fields in lines if fields[0].startswith(("Cap", "NoNewPrivs"))}

def sets_of_a_program():
    code = "import sys; print(open('/proc/self/status').read())"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {line.split()[0][:-1]: int(line.split()[1], 16) for line in text.splitlines() if line.startswith("Cap")}
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", PROGRAM + code], capture_output=True, text=True, timeout=60)
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def mask(numbers):
    return sum(1 << number for number in numbers)


def test_dropped_capabilities_are_gone_for_this_process():
    before, after = run("before = sets(); privileges.drop(privileges.KEPT); print(json.dumps([before, sets()]))")
    assert after["CapEff"] == after["CapPrm"] == before["CapPrm"] & mask(privileges.KEPT)
    assert after["CapInh"] == 0


def test_bound_capabilities_apply_to_programs_and_this_process_keeps_its_own():
    code = """
before = sets()
privileges.bound(privileges.KEPT)
bound = sets()
privileges.drop(privileges.KEPT)
print(json.dumps([before, bound, sets_of_a_program()]))
"""
    before, bound, program = run(code)
    assert bound["CapEff"] == before["CapEff"]
    assert bound["CapBnd"] == before["CapBnd"] & mask(privileges.KEPT)
    assert bound["NoNewPrivs"] == 1
    assert program["CapPrm"] & ~mask(privileges.KEPT) == 0
    assert program["CapEff"] & ~mask(privileges.KEPT) == 0


def test_afterwards_mounting_and_raising_a_limit_are_refused():
    code = """
import ctypes, resource
privileges.bound(privileges.KEPT); privileges.drop(privileges.KEPT)
mounted = ctypes.CDLL(None).mount(b"none", b"/mnt", b"tmpfs", 0, None)
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
try:
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, 1 << 31))
    raised = True
except (OSError, ValueError):
    raised = False
print(json.dumps([mounted, raised]))
"""
    assert run(code) == [-1, False]


def test_raw_devices_are_kept_only_where_disks_are_writable():
    assert privileges.kept(read_only=True) == privileges.KEPT
    assert privileges.kept(read_only=False) - privileges.KEPT == privileges.RAW


def test_who_renounces_has_nothing_and_gets_nothing():
    code = "privileges.renounce(); print(json.dumps([sets(), sets_of_a_program()]))"
    own, program = run(code)
    assert (own["CapEff"], own["CapPrm"], own["CapInh"], own["NoNewPrivs"]) == (0, 0, 0, 1)
    assert "CapEff" in program  # root's programs keep theirs, but for a bounding set


def test_dropping_none_changes_nothing():
    before, after = run("before = sets(); privileges.drop(privileges.ALL); print(json.dumps([before, sets()]))")
    assert after == before
