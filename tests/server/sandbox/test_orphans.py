"""Orphans are killed however fast they come and go, and others are spared."""

import json
import subprocess
import sys

import pytest

IMPORTS = "import ctypes, json, os, signal, sys, time\n"

START = """
from rpcsys.server.sandbox import processes
from rpcsys.server.sandbox.orphans import Orphans
processes.become_subreaper()
spared = os.fork() or time.sleep(120)
main = os.fork()
if main == 0:
    attack()
    os._exit(0)
if wait:
    os.waitpid(main, 0)
orphans = Orphans()
until = time.monotonic() + 60
while not orphans.burst(lambda dead: {spared}) and time.monotonic() < until:
    time.sleep(0.005)
left = processes.children(os.getpid())
print(json.dumps([left == [spared], orphans.names, orphans.stuck]))
os.kill(spared, 9)
"""

ATTACKS = {
    "daemons": """
def attack():
    for _ in range(3):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            os.fork()
            time.sleep(120)
""",
    "fork and exit": """
c = ctypes.PyDLL(None)
def attack():
    while not c.fork():  # the copy goes on, and is an orphan
        c.setsid()
    c._exit(0)
""",
    "three of them": """
c = ctypes.PyDLL(None)
def attack():
    c.fork(), c.fork()
    while not c.fork():
        c.setsid()
    c._exit(0)
""",
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("wait", [True, False])
def test_nothing_is_left_but_what_is_spared(attack, wait):
    done = subprocess.run(
        [sys.executable, "-c", f"{IMPORTS}{ATTACKS[attack]}wait = {wait}\n{START}"],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    clean, names, stuck = json.loads(done.stdout)
    assert clean
    assert names
    assert all(name.startswith("python") for name in names)
    assert stuck == {}
