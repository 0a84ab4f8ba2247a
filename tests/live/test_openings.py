"""Sessions of TVM's clients directly after another: what ends the one before is over, whatever was killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest

import rpcsys
from tests.live.artefacts import LENGTH, Artefacts
from tests.live.daemons import START_S, Daemon, Daemons, alive, wait_until
from tests.live.processes import is_init, is_tvm_zygote

rpc = pytest.importorskip("tvm.rpc")

KEY = "k"
MEASURED_MS = 200
TIMES = 10
KILLS = 2  # the pauses before another child grow with each
#: Of ten: the server keeps connections alive now and then, and on a busy machine may owe the log of a session's begin.
MISSED = 3


@pytest.fixture
def server(daemons: Daemons) -> Daemon:
    return daemons.server(KEY, "--tvm", "python")


def opened(server: Daemon):
    session = rpc.connect(*server.address, key=KEY)
    assert session.get_function("testing.echo")(7) == 7
    return session


def second_zygote(server: Daemon) -> int:
    (pid,) = [one.pid for zygote in server.children() for one in zygote.children() if is_tvm_zygote(one.pid)]
    return pid


def of_tvm(server: Daemon) -> list[int]:
    """The processes of TVM's sessions, and those that wait for one."""
    return [one.pid for one in psutil.Process(second_zygote(server)).children() if not is_init(one.pid)]


def spent(pids: list[int]) -> dict[int, int]:
    """Nanoseconds of CPU that each process, with all its threads, has used."""
    used = {}
    for pid in pids:
        tasks = Path(f"/proc/{pid}/task")
        used[pid] = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())
    return used


def folder_of(session) -> Path:
    """The session's own folder, as the server sees it."""
    return Path(session.get_function("tvm.rpc.server.workpath")("f")).parent.parent


def measured(server: Daemon, session, library: Path) -> dict[int, int]:
    """Measure the library's function; the CPU that each process of the server, but the session's, has used meanwhile.

    No process of the server ends or begins meanwhile.
    """
    import numpy as np
    from tvm.runtime import tensor

    session.upload(str(library))
    add, device = session.load_module(library.name), session.cpu()
    x, y = (tensor(np.zeros(LENGTH, "float32"), device) for _ in range(2))
    add["addone"](x, y)
    tree, (own,) = server.tree(), of_tvm(server)
    before = spent(tree)
    results = add.time_evaluator("addone", device, number=1, repeat=2, min_repeat_ms=MEASURED_MS // 2)(x, y).results
    assert len(results) == 2
    assert server.tree() == tree
    used = {pid: now - before[pid] for pid, now in spent(tree).items()}
    assert used.pop(own) > 1e6
    return used


def test_nothing_of_a_sessions_end_runs_beside_the_next_ones_measurement(server: Daemon, artefacts: Artefacts) -> None:
    quiet = 0
    session = opened(server)
    for _ in range(TIMES):
        session.upload(bytearray(1 << 20), "left")  # so that its directory has to be removed
        folder, (ended,) = folder_of(session), of_tvm(server)
        del session
        session = opened(server)
        assert not alive(ended)
        assert not folder.exists()
        quiet += not any(measured(server, session, artefacts.addone).values())
    assert quiet >= TIMES - MISSED


def test_a_child_that_waits_is_killed_as_its_client_comes(server: Daemon) -> None:
    for _ in range(KILLS):
        served(server)
        wait_until(lambda: of_tvm(server), START_S, "a child waits for the next session")
        for pid in of_tvm(server):
            with contextlib.suppress(ProcessLookupError):  # the one before it has just ended
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: served(server), START_S, "the next client is served")
    assert "not clean" not in server.stderr()


def served(server: Daemon):
    """A session; None if its child is dead before it knows of its client."""
    with contextlib.suppress(Exception):
        return opened(server)
    return None


@pytest.mark.parametrize("which", ["zygote", "maker of inits"])
def test_one_of_those_who_make_children_is_killed_between_two_sessions(server: Daemon, which: str) -> None:
    session = opened(server)
    for _ in range(KILLS):
        killed = second_zygote(server)
        if which != "zygote":
            # The first of its inits: the maker is older than the sessions.
            killed = min((one for one in psutil.Process(killed).children() if is_init(one.pid)), key=born).pid
        del session
        os.kill(killed, signal.SIGKILL)
        session = wait_until(lambda: served(server), START_S, "a client is served")
    assert len(of_tvm(server)) == 1
    assert session.get_function("testing.echo")(7) == 7
    assert "not clean" not in server.stderr()


def born(process: psutil.Process) -> float:
    return process.create_time()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sessions have users of their own")
def test_what_a_session_leaves_is_gone_for_the_next_one_right_after_it(daemons: Daemons) -> None:
    server = daemons.server(KEY, "--tvm", "python", "--session-user", "auto", "--import", "tests.live.user_functions")
    opened(server)
    for _ in range(TIMES):
        with rpcsys.connect(*server.address, key=KEY) as session:
            left = session.get_function("user.leave")()
        assert left
        assert opened(server).get_function("tvm.rpc.server.listdir")("") == ""
        with rpcsys.connect(*server.address, key=KEY) as session:
            assert session.get_function("user.left")() == []
    assert server.stderr().count("had to be killed: ") == TIMES
