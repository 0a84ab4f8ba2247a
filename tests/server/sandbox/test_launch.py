"""The server's other processes start with one socket, an empty input, and this interpreter's imports."""

import json
import os
import socket
import subprocess
import sys

import pytest

from rpcsys.server.sandbox import launch

PROGRAM = """
import json, os, socket, sys

def main(settings):
    sock = socket.socket(fileno=3)
    print("printed", flush=True)
    descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    others = [number for number in descriptors if number > 3 and os.path.exists(f"/proc/self/fd/{number}")]
    report = {"settings": settings, "input": sys.stdin.read(), "descriptors": others}
    report["leader"] = os.getpgrp() == os.getpid()
    sock.send(json.dumps(report).encode())
    os._exit(0)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "launched.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("leader", [False, True])
@pytest.mark.parametrize("at_its_place", [False, True])
def test_a_fresh_interpreter_has_its_settings_and_one_socket(program, leader, at_its_place):
    """The socket may already be number 3 here, although this process's descriptors are close-on-exec."""
    code = f"""
import os, socket, sys
sys.path.insert(0, {str(program)!r})
from rpcsys.server.sandbox import launch
ours, theirs = socket.socketpair()
number = theirs.detach()
if {at_its_place}:
    if ours.fileno() == 3:
        ours = socket.socket(fileno=os.dup(ours.detach()))
    os.dup2(number, 3, inheritable=False)
    number = 3
ours.settimeout(60)
reading, writing = os.pipe()
pid = launch.start("launched", {{"a": [1]}}, number, "name", leader={leader}, printing=writing)
print(ours.recv(10000).decode())
print(os.read(reading, 100))
print(os.waitpid(pid, 0)[1], os.get_inheritable(number))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, input="typed")
    assert not run.stderr
    report, printed, ended = run.stdout.splitlines()
    assert json.loads(report) == {"settings": {"a": [1]}, "input": "", "leader": leader, "descriptors": []}
    assert (printed, ended) == ("b'printed\\n'", "0 False")


def test_a_copy_has_its_settings_and_one_socket(program):
    code = f"""
import os, signal, socket, sys
sys.path.insert(0, {str(program)!r})
from rpcsys.server.sandbox import launch
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = open("/dev/null")
ours, theirs = socket.socketpair()
ours.settimeout(60)
reading, writing = os.pipe()
pid = launch.copy("launched", {{"a": [1]}}, theirs.fileno(), writing)
print(ours.recv(10000).decode())
print(os.read(reading, 100), os.waitpid(pid, 0)[1], kept.closed)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, input="typed")
    assert not run.stderr
    report, rest = run.stdout.splitlines()
    assert json.loads(report) == {"settings": {"a": [1]}, "input": "", "leader": True, "descriptors": []}
    assert rest == "b'printed\\n' 0 False"


def test_a_failed_start_leaves_the_descriptor_open(program, monkeypatch):
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with ours, theirs:
        with pytest.raises(FileNotFoundError):
            launch.start("launched", {}, theirs.fileno(), "name")
        assert os.fstat(theirs.fileno())


@pytest.mark.parametrize("flags", [[], ["-I"], ["-S", "-B"], ["-E", "-s"]])
def test_flags_that_affect_imports_are_kept(flags):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from rpcsys.server.sandbox import launch; print(*launch.flags())"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(launch.__file__))))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    run = subprocess.run(
        [sys.executable, *flags, "-c", code, root], capture_output=True, text=True, env=plain, check=True
    )
    assert sorted(run.stdout.split()) == sorted(flags)
