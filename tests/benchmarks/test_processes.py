"""Processes of the benchmarks: pinned, answering, and gone with whoever started them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.processes import HIDE_NUMPY, ROOT, Process, ProcessFailed, cpu_seconds

ECHO = "import sys\nfor line in sys.stdin: print('noise', line, sep='\\n', end='', flush=True)"
CORE = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="affinity and prctl are Linux's")


def started(tmp_path, code, **options):
    return Process(("-c", code), core=CORE, log=tmp_path / "log", **options)


def test_lines_go_both_ways_and_noise_is_skipped(tmp_path):
    process = started(tmp_path, ECHO)
    try:
        process.send({"a": 1})
        assert process.receive(10) == {"a": 1}
    finally:
        process.stop()


def test_a_process_is_pinned(tmp_path):
    process = started(tmp_path, "import os, json; print(json.dumps({'on': [*os.sched_getaffinity(0)]}))")
    try:
        assert process.receive(10) == {"on": [CORE]}
    finally:
        process.stop()


def test_a_processs_cpu_time_grows_with_its_work_alone(tmp_path):
    spin = "begin = time.process_time()\n while time.process_time() < begin + 0.2: pass\n print('{}', flush=True)"
    work = f"import sys, time\nfor line in sys.stdin:\n {spin}"
    process = started(tmp_path, work)
    try:
        process.send({})
        process.receive(20)
        before = cpu_seconds(process.pid)
        process.send({})
        process.receive(20)
        assert 0.19 < cpu_seconds(process.pid) - before < 1
    finally:
        process.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace takes root")
def test_a_process_may_have_a_network_of_its_own(tmp_path):
    code = "import json, os; print(json.dumps({'network': os.readlink('/proc/self/ns/net')}))"
    process = started(tmp_path, code, own_network=True)
    try:
        assert process.receive(20)["network"] != os.readlink("/proc/self/ns/net")
    finally:
        process.stop()


def test_one_that_ends_without_a_word_is_reported_with_its_last_words(tmp_path):
    process = started(tmp_path, "raise SystemExit('the reason')")
    try:
        with pytest.raises(ProcessFailed, match="ended: the reason"):
            process.receive(10)
    finally:
        process.stop()


def test_one_that_says_nothing_is_reported(tmp_path):
    process = started(tmp_path, "import time; time.sleep(60)")
    try:
        with pytest.raises(ProcessFailed, match="said nothing"):
            process.receive(0.2)
    finally:
        process.stop()


def test_numpy_can_be_hidden_from_a_process_and_its_children(tmp_path):
    child = "try:\n import numpy\n print('found')\nexcept ModuleNotFoundError:\n print('hidden')"
    code = (
        "import subprocess, sys, json;"
        f"done = subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True);"
        "print(json.dumps({'child': done.stdout}))"
    )
    process = started(tmp_path, code, hide_numpy=True)
    try:
        assert process.receive(20) == {"child": "hidden\n"}
    finally:
        process.stop()
    assert (HIDE_NUMPY / "sitecustomize.py").exists()


def test_what_a_killed_harness_started_dies_with_it(tmp_path):
    code = (
        "import json, sys, time; from pathlib import Path; from benchmarks.processes import Process;"
        "sleeper = 'import time; print(\"{}\", flush=True); time.sleep(600)';"
        f"p = Process(('-c', sleeper), core={CORE}, log=Path(sys.argv[1]));"
        "p.receive(20); print(p.pid, flush=True); time.sleep(600)"
    )
    harness = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    pid = int(harness.stdout.readline())
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    harness.stdout.close()
    gone(pid)


LEADER = (
    "import json, subprocess, sys; from benchmarks.peers.subject import serve_until_told, take_children_along;"
    "take_children_along();"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], stdin=subprocess.DEVNULL);"
    "print(json.dumps({'child': child.pid}), flush=True);"
    "serve_until_told()"
)


def test_a_stopped_server_takes_along_what_it_started(tmp_path):
    process = started(tmp_path, LEADER)
    child = process.receive(20)["child"]
    process.stop()
    gone(child)


def test_a_server_whose_parent_is_killed_takes_along_what_it_started(tmp_path):
    code = (
        "import json, sys, time; from pathlib import Path; from benchmarks.processes import Process;"
        f"p = Process(('-c', {LEADER!r}), core={CORE}, log=Path(sys.argv[1]));"
        "print(json.dumps(p.receive(20)), flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as harness:
        child = json.loads(harness.stdout.readline())["child"]
        harness.kill()
    gone(child)


def gone(pid):
    """Wait until a process has ended."""
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline, "it outlived the process that started it"
        time.sleep(0.01)


def alive(pid):
    try:
        return "Z" not in open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        return False
