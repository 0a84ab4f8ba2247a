"""``rpcsys shell``, ``hold`` and ``release`` as processes: a board for several commands, and free after each end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from tests.live.daemons import ROOT, Daemon, queue, wait_free, wait_until

KEY = "board"
SOON_S = 20.0
RPCSYS = f"{shlex.quote(sys.executable)} -m rpcsys"


@pytest.fixture(scope="module")
def lab(module_daemons) -> Daemon:
    daemons = module_daemons()
    tracker = daemons.tracker()
    daemons.server(KEY, "--tvm", "off", "--preload", "none", "--name", "desk-7", tracker=tracker)
    return tracker


@pytest.fixture
def desk(lab, tmp_path):
    """Starts a command in an empty folder, as a user at a desk does."""
    own = {"PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path), "RPCSYS_TRACKER": lab.where}

    def begin(*command: str) -> subprocess.Popen[str]:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **own}, text=True, **streams)

    return begin


def rpcsys(desk, *words: str) -> subprocess.Popen[str]:
    return desk(sys.executable, "-m", "rpcsys", *words)


def test_the_commands_of_a_shell_share_a_board(desk, lab, tmp_path):
    (tmp_path / "in.txt").write_text("hello")
    script = (
        f"echo $RPCSYS_HELD; {RPCSYS} push in.txt; {RPCSYS} pull in.txt out.txt; {RPCSYS} shell --key {KEY}; exit 7"
    )
    process = rpcsys(desk, "shell", "--key", KEY, "--", "sh", "-c", script)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 7, err
    assert out.splitlines() == ["board@desk-7", "1 file, 0.0 MB", "1 file, 0.0 MB"]
    assert err.splitlines() == [
        "rpcsys: error: this shell holds desk-7 already: exit it first, or type: unset RPCSYS_LEASE"
    ]
    assert (tmp_path / "out.txt").read_text() == "hello"
    wait_free(lab, KEY, 1, SOON_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_shell_that_is_killed_releases(desk, lab, number):
    process = rpcsys(desk, "shell", "--key", KEY, "--", "sh", "-c", "echo begun; exec cat")
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    process.wait(SOON_S)
    wait_free(lab, KEY, 1, SOON_S)
    process.communicate(timeout=SOON_S)  # closes the input of `cat`


def test_a_hold_lasts_between_commands_until_its_release(desk, lab):
    holding = rpcsys(desk, "hold", "--key", KEY, "--for", "1h")
    out, err = holding.communicate(timeout=60)
    assert holding.returncode == 0, err
    assert err.startswith("desk-7 is held for 1h00m; to use it: eval")
    waiting = rpcsys(desk, "hold", "--key", KEY)
    wait_until(lambda: queue(lab, KEY)["pending"] == 1, SOON_S, "another waits")
    waiting.send_signal(signal.SIGINT)
    out_of_it, err = waiting.communicate(timeout=SOON_S)
    assert (out_of_it, err.strip()) == ("", "rpcsys: interrupted")
    wait_until(lambda: queue(lab, KEY)["pending"] == 0, SOON_S, "it has left the queue")
    rest = f"{RPCSYS} holds --json; {RPCSYS} release; {RPCSYS} push nothing; {RPCSYS} release"
    out, err = desk("sh", "-c", f"{out}{rest}").communicate(timeout=60)
    listed, said = out.splitlines()
    assert (json.loads(listed)["server"], said) == ("desk-7", "desk-7 is released; type: unset RPCSYS_LEASE")
    for line in err.splitlines():
        assert line.endswith("is over, or was released: exit its shell, or type: unset RPCSYS_LEASE")
    assert err.count("\n") == 2
    wait_free(lab, KEY, 1, SOON_S)
