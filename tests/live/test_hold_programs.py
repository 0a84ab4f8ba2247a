"""Programs and forwarded ports of a held board: they end with their command, and all others with the hold."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

import rpcsys
from rpcsys.client import attaching
from rpcsys.errors import SessionLost
from tests.live.board_commands import FLAGS, WAIT_S, shell
from tests.live.daemons import ROOT, Daemon, hold_port, wait_free, wait_until

KEY = "board"
NO_TRACKER = "127.0.0.1:1"
CLEAN_S = 2.0
#: It ignores its terminal's end, and starts one process beside it and one that leaves its session.
STAYS = (
    "trap '' HUP INT; setsid sleep 601 </dev/null >/dev/null 2>&1 & sleep 602 & echo ready; while :; do sleep 1; done"
)


@pytest.fixture(scope="module")
def lab(module_daemons) -> tuple[Daemon, Daemon]:
    daemons = module_daemons()
    tracker = daemons.tracker()
    flags = (*FLAGS, "--allow-exec", "--allow-pickle", "--grace", "1", "--name", "desk-7")
    return tracker, daemons.server(KEY, *flags, tracker=tracker)


@pytest.fixture
def hold(lab, tmp_path, monkeypatch) -> Iterator[rpcsys.client.holds.Hold]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(attaching.VARIABLE, raising=False)
    with rpcsys.hold(KEY, tracker=lab[0].where, wait_timeout=WAIT_S) as hold:
        yield hold


def command(hold, *words: str) -> subprocess.Popen[bytes]:
    """A command in the shell of a hold. The tracker is away: nothing here needs it."""
    environment = {**os.environ, **hold.environment(), "RPCSYS_TRACKER": NO_TRACKER, "PYTHONPATH": str(ROOT)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-m", "rpcsys", *words], env=environment, **pipes)


def programs(server: Daemon) -> list[str]:
    """What runs on the board beside processes of rpcsys."""
    found = []
    for process in psutil.Process(server.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name() in ("sh", "sleep") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


def test_commands_share_the_folder_and_programs_end_with_theirs(lab, hold, monkeypatch):
    tracker, server = lab
    with hold.session() as session:
        session.upload(b"pushed\n", "file")
    out, err = command(hold, "exec", *shell("cat file; cat >written; exit 3")).communicate(b"input", timeout=WAIT_S)
    assert (out, err) == (b"pushed\n", b"")
    with hold.session() as session:
        assert session.download("written") == b"input"
        both = [session.popen(["sleep", "603"]), session.popen(["cat"], terminal=True)]
        assert [each.poll() for each in both] == [None, None]
    wait_until(lambda: programs(server) == [], CLEAN_S, "its programs end with a session")
    killed = command(hold, "exec", *shell(STAYS))
    assert killed.stdout.readline() == b"ready\n"
    killed.kill()
    killed.communicate()
    wait_until(lambda: programs(server) == ["sleep 601"], CLEAN_S, "a daemon alone stays")
    with hold.session() as session:
        process = session.popen(shell(STAYS))
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(SessionLost):
            session.run(os.abort)
        wait_until(lambda: programs(server) == ["sleep 601"] * 2, CLEAN_S, "programs of a crashed session end")
    hold.close()
    wait_until(lambda: programs(server) == [], CLEAN_S, "nothing stays after the hold")
    wait_free(tracker, KEY, 1, CLEAN_S)
    monkeypatch.setenv(attaching.VARIABLE, hold.path)
    released = subprocess.run([sys.executable, "-m", "rpcsys", "exec", "true"], capture_output=True, timeout=WAIT_S)
    assert (released.returncode, released.stderr.count(b"\n")) == (255, 1)
    assert b"is over, or was released" in released.stderr


def test_a_forward_ends_with_its_hold_and_says_so(hold):
    with socket.create_server(("127.0.0.1", 0)) as service, hold_port("127.0.0.1") as held:
        here = held.getsockname()[1]
        held.close()
        forward = command(hold, "forward", f"{service.getsockname()[1]}:{here}")
        assert b"of the board" in forward.stdout.readline()
        with socket.create_connection(("127.0.0.1", here), WAIT_S) as client:
            client.sendall(b"to the board")
            served, _ = service.accept()
            with served:
                assert served.recv(100) == b"to the board"
                served.sendall(b"and back")
                assert client.recv(100) == b"and back"
                hold.close()
                assert client.recv(100) == b""
        _, err = forward.communicate(timeout=WAIT_S)
    assert forward.returncode not in (0, None)
    assert err.count(b"\n") == 1
    assert b"is over, or was released: exit its shell, or type: unset RPCSYS_LEASE" in err
