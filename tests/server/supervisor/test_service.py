"""The device server as a command, with real processes and no tracker."""

from __future__ import annotations

import math
import os
import resource
import signal
import socket
import sys
import time

import psutil
import pytest

import rpcsys
from rpcsys.server.sandbox import mount_namespace
from rpcsys.wire import handshake
from tests.live.daemons import ROOT, Daemon, Daemons, alive, anonymous_mb, descendants, outside, wait_until

pytestmark = pytest.mark.live

SOON_S = 15.0  # timeout for steps of some milliseconds, on a busy machine
BARE = ("--tvm", "off", "--preload", "none", "--import", "tests.server.boardfunctions")


@pytest.fixture
def daemons(tmp_path):
    started = Daemons(tmp_path)
    yield started
    started.stop()


@pytest.fixture
def server(daemons):
    return daemons.server("k", *BARE, "--slots", "2")


def session(server: Daemon, **options):
    return rpcsys.connect(*server.address, key="k", **options)


def ask(session, name, *args):
    answer = session.get_function("board." + name)(*args)
    return outside(answer, ask(session, "files")) if name == "daemon" else answer


def knock(server: Daemon, data: bytes = b"") -> socket.socket:
    sock = socket.create_connection(server.address, timeout=SOON_S)
    sock.sendall(data)
    return sock


def opening(key="k", **options):
    return handshake.encode_greeting(handshake.Greeting("client", key, handshake.Options(**options)))


def gone(*pids):
    wait_until(lambda: not any(map(alive, pids)), SOON_S, f"{pids} are dead")


def folder_of(server: Daemon, daemons: Daemons):
    return next(daemons.folder.glob(f"rpcsys-server-{server.pid}-*"))


def zygote_of(server: Daemon) -> int:
    (zygote,) = server.children()
    return zygote.pid


# A session's life


def test_sessions_are_apart_and_leave_nothing(server, daemons):
    with session(server) as one, session(server) as two:
        assert ask(one, "pid") != ask(two, "pid")
        assert ask(one, "files") != ask(two, "files")
        paths = [ask(one, "files"), ask(one, "temporary")]
        assert all(os.path.isdir(path) for path in paths)
        pids = [ask(one, "pid"), ask(two, "pid"), ask(one, "daemon")]
    gone(*pids)
    wait_until(lambda: not list(folder_of(server, daemons).glob("session-*")), SOON_S, "no directories are left")
    wait_until(lambda: "had to be killed: python" in server.stderr(), SOON_S, "the killed process is logged")
    with session(server) as again:
        assert ask(again, "pid") not in pids


def test_a_session_has_its_own_descriptors_only(server):
    with session(server), session(server) as two:
        names = ask(two, "descriptors")
    # the client's connection and the control socket
    assert len([name for name in names if name.startswith("socket:")]) == 2
    assert not [name for name in names if "rpcsys-server-" in name], "a way to others' directories"


def test_a_client_waits_for_a_slot(server):
    one, two = session(server), session(server)
    with knock(server, opening(session="rpcsys/1")) as third:
        third.settimeout(0.3)
        with pytest.raises(TimeoutError):
            third.recv(1)
        one.close()
        third.settimeout(SOON_S)
        assert third.recv(4) == b"\x71\xf2\x0f\x00"
    two.close()


def test_a_fresh_interpreter_for_every_session(daemons):
    server = daemons.server("k", *BARE, "--no-fork")
    for _ in range(2):
        with session(server) as one:
            pids = [ask(one, "pid"), ask(one, "daemon")]
        gone(*pids)
    rest = descendants(server.pid)
    assert rest
    server.kill()
    gone(*rest)


def test_a_time_limit_ends_a_session(server):
    with session(server, session_timeout=1) as one:
        pid = ask(one, "pid")
        with pytest.raises(rpcsys.errors.SessionTimeout):
            ask(one, "sleep", 60)
    gone(pid)


def test_a_time_limit_holds_while_the_interpreter_is_blocked(server):
    with session(server, session_timeout=1) as one:
        pid = ask(one, "pid")
        with pytest.raises(rpcsys.errors.SessionTimeout, match="limit of 1 s"):
            ask(one, "seize")
    gone(pid)


def test_the_directory_of_sessions_may_vanish(server, daemons):
    folder = folder_of(server, daemons)
    folder.rename(folder.with_name("elsewhere"))
    with session(server) as one:
        assert os.path.isdir(ask(one, "files"))


def test_invalid_messages_of_a_session_end_only_it(server):
    for which in range(7):
        with session(server) as one:
            assert ask(one, "babble", which)
    assert server.running()
    with session(server) as one:
        assert ask(one, "pid")
    lines = server.stderr().splitlines()
    assert all(line.isprintable() and " rpcsys-server " in line for line in lines)


def test_sessions_have_a_higher_oom_score_than_the_server(server):
    def score(pid):
        with open(f"/proc/{pid}/oom_score_adj") as file:
            return int(file.read())

    with session(server) as one:
        assert score(ask(one, "pid")) == 800
        assert score(server.pid) <= score(os.getpid())


# Processes that are killed


def test_a_killed_session_does_not_affect_others(server):
    with session(server) as one, session(server) as two:
        pids = [ask(one, "pid"), ask(one, "daemon")]
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(rpcsys.errors.SessionLost):
            ask(one, "sleep", 60)
        gone(*pids)
        assert ask(two, "pid")
    with session(server):
        pass


def test_a_killed_zygote_is_replaced(server):
    with session(server) as one:
        pids = [ask(one, "pid"), ask(one, "daemon"), zygote_of(server)]
        os.kill(pids[-1], signal.SIGKILL)
        with pytest.raises(rpcsys.errors.SessionLost):
            ask(one, "sleep", 60)
    gone(*pids)
    with session(server) as again:
        assert ask(again, "pid")
    assert "the zygote died" in server.stderr()


def test_a_killed_server_leaves_no_process(server, daemons):
    folder = folder_of(server, daemons)
    one = session(server)
    pids = [*server.tree(), ask(one, "daemon")]
    server.kill()
    with pytest.raises(rpcsys.errors.SessionLost):
        ask(one, "sleep", 60)
    gone(*pids)
    wait_until(lambda: not folder.exists(), SOON_S, "its folder is gone")
    one.close()


def test_the_next_server_removes_the_folder_of_a_killed_one(server, daemons):
    living = daemons.server("k2", *BARE)
    folder, other = folder_of(server, daemons), folder_of(living, daemons)
    pids = [zygote_of(server), *server.tree()]
    (folder / "session-1").mkdir()
    (folder / "session-1" / "file").write_bytes(b"left")
    server.process.send_signal(signal.SIGSTOP)  # neither can clean up for the other
    os.kill(pids[0], signal.SIGKILL)
    server.kill()
    gone(*pids)
    assert folder.exists()
    daemons.server("k3", *BARE)
    wait_until(lambda: not folder.exists(), SOON_S, "the next server has removed it")
    assert other.exists()
    with rpcsys.connect(*living.address, key="k2") as one:
        assert ask(one, "pid")


@pytest.mark.parametrize("module", ["tests.server.sleeper", "tests.server.boardfunctions"])
def test_a_server_killed_at_its_start_leaves_no_process(daemons, module):
    flags = ("--host", "127.0.0.1", "--port", "0", *BARE, "--import", module)
    server = daemons.launch("starting", [sys.executable, "-m", "rpcsys.server", *flags])
    pids = wait_until(lambda: [child.pid for child in server.children()], SOON_S, "its zygote is there")
    server.kill()
    gone(*pids)
    wait_until(lambda: not list(daemons.folder.glob("rpcsys-server-*")), SOON_S, "its folder is gone")
    assert "Traceback" not in server.stderr()


def test_waiting_children_that_are_killed_are_replaced(server):
    def waiting():
        return [pid for pid in server.tree(inits=False) if pid not in (server.pid, zygote_of(server))]

    before = wait_until(lambda: len(waiting()) == 2 and waiting(), SOON_S, "two wait")
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(set(waiting()) - set(before)) == 2, SOON_S, "two others wait")
    with session(server), session(server):
        pass


# Invalid peers


@pytest.mark.slow
def test_half_a_greeting_is_dropped_after_its_timeout(server):
    sock = knock(server, opening()[:9])
    start = time.monotonic()
    sock.settimeout(60)
    assert sock.recv(1) == b""
    assert 5 < time.monotonic() - start < 18
    assert "its greeting is not whole in time" in server.stderr()


def test_random_bytes_do_no_harm(server):
    pids = server.tree()
    for size in (1, 4, 7, 100, 100_000):
        for _ in range(10):
            sock = knock(server)
            try:
                sock.sendall(os.urandom(size))
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1000):
                    pass
            except OSError:
                pass  # the server has dropped the connection already
            sock.close()
    assert server.tree() == pids
    with session(server) as one:
        assert ask(one, "pid")


def test_bytes_after_the_greeting_reach_the_session(server):
    """No byte of a HELLO that is sent with the greeting is lost."""
    with session(server) as one:
        hello_first = opening(session="rpcsys/1")
        assert ask(one, "pid")
    with knock(server, hello_first + b"not a frame at all, but 24 bytes or more") as sock:
        data = b""
        while True:
            try:
                more = sock.recv(4096)
            except ConnectionResetError:
                break
            if not more:
                break
            data += more
    assert data.startswith(b"\x71\xf2\x0f\x00")
    assert b"ProtocolError" in data


@pytest.mark.parametrize(
    ("greeting", "code"),
    [
        (opening("wrong", session="rpcsys/1"), handshake.MISMATCH),
        (opening(), handshake.MISMATCH),  # a TVM client at a server with --tvm off
        (opening(session="rpcsys/1", serve="resnet"), handshake.MAGIC),  # followed by an error
        (opening(session="rpcsys/2"), handshake.MAGIC),
    ],
)
def test_each_refusal_has_its_code(server, greeting, code):
    with knock(server, greeting + b"unread bytes") as sock:
        answer = sock.recv(4)
        assert int.from_bytes(answer, "little") == code
        while sock.recv(100):
            pass


def test_a_server_survives_a_lack_of_descriptors(daemons):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    server = daemons.server("k", *BARE, preexec_fn=few)
    crowd = [knock(server) for _ in range(60)]
    before = cpu_seconds(server.pid)
    time.sleep(2)
    assert cpu_seconds(server.pid) - before < 1, "it spins"
    for sock in crowd:
        sock.close()
    with session(server) as one:
        assert ask(one, "pid")


def cpu_seconds(pid):
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


# Stopping


def test_stop_lets_a_session_finish(server, daemons):
    folder = folder_of(server, daemons)
    one = session(server)
    pids = server.tree()
    server.process.terminate()
    wait_until(lambda: not listens(server), SOON_S, "it stops listening")
    assert ask(one, "sleep", 0.1) is None
    one.close()
    assert server.process.wait(SOON_S) == 0
    gone(*pids)
    assert not folder.exists()


def test_stop_ends_a_session_after_the_grace(daemons):
    server = daemons.server("k", *BARE, "--grace", "0.5")
    one = session(server)
    pids = [*server.tree(), ask(one, "daemon")]
    server.process.send_signal(signal.SIGINT)
    with pytest.raises(rpcsys.errors.SessionLost):
        ask(one, "sleep", 60)
    assert server.process.wait(SOON_S) == 0
    gone(*pids)
    one.close()


def test_a_server_can_be_stopped_while_it_starts(daemons):
    command = [sys.executable, "-m", "rpcsys.server", "--host", "127.0.0.1", "--port", "0", *BARE]
    server = daemons.launch("starting", command)
    wait_until(lambda: server.children() or not server.running(), SOON_S, "its zygote is there")
    assert server.terminate() == 0
    assert server.stdout_path.read_text() == ""


def listens(server):
    try:
        knock(server).close()
    except ConnectionRefusedError:
        return False
    return True


# Starting


def test_a_full_port_range_is_exit_status_3(server, daemons):
    port = server.address[1]
    command = [sys.executable, "-m", "rpcsys.server", "--host", "127.0.0.1", *BARE]
    full = daemons.launch("full", [*command, "--port", str(port), "--port-end", str(port + 1)])
    assert full.process.wait(SOON_S) == 3
    assert len(full.stderr().splitlines()) == 1
    assert str(port) in full.stderr()


def test_listening_on_all_addresses_is_logged_once(daemons):
    server = daemons.server("k", *BARE, "--host", "0.0.0.0")
    assert server.ready["host"] == "0.0.0.0"
    assert server.stderr().count("may run code here") == 1


def test_listening_on_loopback_is_not_logged(server):
    assert "may run code" not in server.stderr()


IDLE_MB = 25.5  # of a server on a board without packages, without pages of files
SLOT_MB = 4.8  # its init takes 0.6 of these
ROOM = 1.0 if sys.version_info < (3, 12) else 1.25  # later Pythons need more memory
SETTLED_S = 1.5


def idle(daemons: Daemons, slots: int) -> float:
    """Memory of all processes of a server on a board without any package, in MB, without pages of files."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom rpcsys.server.__main__ import main\nsys.exit(main())"
    flags = ("--tvm", "off", "--host", "127.0.0.1", "--port", "0", "--key", "k", "--slots", str(slots))
    server = daemons.launch("bare", [sys.executable, "-I", "-S", "-c", code, *flags])
    server.await_ready_line()
    inits = 0 if mount_namespace.probe("/tmp/rpcsys-probe", own_pids=True) else slots + 1  # and their maker
    counts = [2 + slots, 2 + slots + inits]
    wait_until(
        lambda: [len(server.tree(inits)) for inits in (False, True)] == counts, SOON_S, "a child waits for every slot"
    )
    until, least = time.monotonic() + SETTLED_S, math.inf
    while time.monotonic() < until:  # a starting process has more
        least = min(least, anonymous_mb(server.tree()))
        time.sleep(0.1)
    return least


def test_an_idle_server_is_small(daemons, record_property):
    idle(daemons, 1)  # compiles all modules
    one, four = idle(daemons, 1), idle(daemons, 4)
    record_property("an idle server of one slot", f"{one:.1f} MB of its own")
    record_property("each further slot", f"{(four - one) / 3:.1f} MB")
    assert one <= IDLE_MB * ROOM
    assert (four - one) / 3 < SLOT_MB


@pytest.mark.parametrize(("flags", "named"), [(("--name", "orin-3"), ["orin-3", "orin-3-2"]), ((), None)])
def test_a_port_is_in_no_name_that_was_given(daemons, flags, named):
    tracker = daemons.tracker()
    ports = [daemons.server("k", *BARE, *flags, tracker=tracker, offers=n).address[1] for n in (1, 2)]
    host = os.uname().nodename
    with rpcsys.connect_tracker(tracker.address) as asked:
        assert sorted(row["name"] for row in asked.summary()["servers"]) == (named or [host, f"{host}:{ports[1]}"])


def test_clients_are_sent_the_address_that_is_given(daemons):
    tracker = daemons.tracker()
    daemons.server("k", *BARE, "--custom-addr", "board.example:19090", tracker=tracker)
    with rpcsys.connect_tracker(tracker.address) as link:
        (row,) = link.summary()["servers"]
        assert (row["address"], row["port"]) == ("board.example", 19090)
