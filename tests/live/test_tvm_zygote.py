"""A server whose second zygote serves TVM's clients: started by the first of them, killed, cleaned up after."""

from __future__ import annotations

import concurrent.futures
import os
import signal

import psutil
import pytest

import rpcsys
from tests.live.daemons import START_S, Daemon, Daemons, alive, wait_until
from tests.live.processes import is_tvm_zygote

rpc = pytest.importorskip("tvm.rpc")

KEY = "k"
SLOTS = 3


@pytest.fixture
def server(daemons: Daemons) -> Daemon:
    return daemons.server(KEY, "--tvm", "python", "--slots", str(SLOTS))


def second_zygotes(server: Daemon) -> list[int]:
    return [one.pid for zygote in server.children() for one in zygote.children() if is_tvm_zygote(one.pid)]


def of_tvm(server: Daemon):
    """A session of TVM's client that has made a call."""
    session = rpc.connect(*server.address, key=KEY)
    assert session.get_function("testing.echo")(7) == 7
    return session


def ours(server: Daemon) -> rpcsys.Session:
    return rpcsys.connect(*server.address, key=KEY, timeout=START_S)


def loads_tvm(pid: int) -> bool:
    return any("libtvm" in mapping.path for mapping in psutil.Process(pid).memory_maps())


def test_a_server_without_tvms_clients_has_no_tvm(server: Daemon) -> None:
    with ours(server) as session:
        assert session.get_function("testing.echo")(7) == 7
        assert not any(map(loads_tvm, server.tree(inits=False)))
    (waiting,) = second_zygotes(server)
    assert psutil.Process(waiting).memory_full_info().uss < 2e6


def test_clients_of_tvm_that_come_first_and_at_once_start_one_zygote(server: Daemon) -> None:
    with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
        sessions = [*pool.map(lambda _: of_tvm(server), range(SLOTS))]
    (second,) = second_zygotes(server)
    assert loads_tvm(second)
    sessions.clear()
    with ours(server) as session:
        assert session.get_function("testing.echo")(7) == 7
        assert not loads_tvm(session.info["pid"])


def test_our_sessions_outlive_the_second_zygote_and_tvms_clients_get_another(server: Daemon) -> None:
    theirs = of_tvm(server)
    with ours(server) as session:
        (second,) = second_zygotes(server)
        below = psutil.Process(second).children(recursive=True)
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: not any(alive(one.pid) for one in below), START_S, "its children are dead")
        with pytest.raises(Exception, match=r"[Cc]onnection|RPC|socket|closed"):
            theirs.get_function("testing.echo")(7)
        assert session.get_function("testing.echo")(7) == 7
        assert of_tvm(server) is not None
    assert second not in second_zygotes(server)
    assert "not clean" not in server.stderr()


def test_both_zygotes_are_replaced_when_the_first_is_killed(server: Daemon) -> None:
    theirs, session = of_tvm(server), ours(server)
    (first,) = [child.pid for child in server.children()]
    below = psutil.Process(first).children(recursive=True)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not any(alive(one.pid) for one in below), START_S, "all below it are dead")
    with pytest.raises(rpcsys.errors.SessionLost):
        session.get_function("testing.echo")(7)
    del theirs
    with ours(server) as session:
        assert session.get_function("testing.echo")(7) == 7
    assert of_tvm(server) is not None
    assert "not clean" not in server.stderr()


def test_a_killed_server_leaves_no_process_of_either_zygote(server: Daemon) -> None:
    theirs = of_tvm(server)
    tree = server.tree()
    assert second_zygotes(server)[0] in tree
    server.kill()
    wait_until(lambda: not any(map(alive, tree)), START_S, "every process is gone")
    del theirs
