"""Our servers behind proxies, ours and TVM's: leases, killed processes, and fake proxies."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

import rpcsys
from rpcsys import errors
from rpcsys.wire import handshake
from tests.live.daemons import START_S, Daemon, Daemons, descendants, queue, wait_free, wait_until
from tests.live.ways import every_way
from tests.scripted_peers import MAGIC, WELCOME, framed

KEY = "lab:5:board"
BARE = ("--tvm", "off", "--preload", "none", "--import", "tests.live.session_faults", "--grace", "1")
LIMIT_S = 5  # of a session that is to end by itself
SOON_S = 20.0  # for what takes a second, on a busy machine
AT_ONCE_S = 1.0  # the documented limit, on an idle machine


def behind(daemons: Daemons, proxy: Daemon, *flags: str) -> Daemon:
    """A server of ours behind the proxy, ready."""
    server = daemons.behind(proxy, KEY, *BARE, *flags, flavour="ours")
    server.await_ready_line()
    assert server.ready["port"] is None
    return server


def connect(proxy: Daemon, **options) -> rpcsys.Session:
    return rpcsys.connect(*proxy.address, key=KEY, timeout=SOON_S, **options)


def works(session: rpcsys.Session) -> None:
    assert session.get_function("testing.echo")("there and back") == "there and back"


# Each pairing of proxy and tracker


@pytest.mark.parametrize("flavour", ["tvm", "ours"])
def test_two_slots_serve_two_clients_at_once_without_a_tracker(daemons: Daemons, flavour: str):
    proxy = daemons.proxy(flavour=flavour)
    behind(daemons, proxy, "--slots", "2")
    for _ in range(2):
        with connect(proxy) as one, connect(proxy) as two:
            pids = [session.info["pid"] for session in (one, two)]
            assert len(set(pids)) == 2


@pytest.mark.parametrize("trackers", ["tvm", "ours"])
@pytest.mark.parametrize("proxies", ["tvm", "ours"])
def test_two_slots_are_leased_through_a_tracker(daemons: Daemons, proxies: str, trackers: str):
    tracker = daemons.tracker(flavour=trackers)
    proxy = daemons.proxy("--tracker", tracker.where, flavour=proxies)
    behind(daemons, proxy, "--slots", "2")
    wait_free(tracker, KEY, 2, START_S)
    client = rpcsys.connect_tracker(tracker.address)
    for _ in range(2):
        with client.request(KEY, wait_timeout=START_S) as one, client.request(KEY, wait_timeout=START_S) as two:
            works(one)
            works(two)
    rows = [row["key"] for row in client.summary()["server_info"]]
    own = (proxies, trackers) == ("ours", "ours")
    assert rows.count(f"server:{KEY}") == (2 if own else 0)
    assert len(client.summary().get("leases", [])) <= 2


@pytest.mark.open_lab("in a closed lab, such boards are not offered")
def test_the_boards_of_a_proxy_without_proxy_from_are_offered_without_limits(daemons: Daemons):
    tracker = daemons.tracker("--proxy-from", "192.0.2.1")
    proxy = daemons.proxy("--tracker", tracker.where)
    server = behind(daemons, proxy)
    wait_free(tracker, KEY, 1, START_S)
    client = rpcsys.connect_tracker(tracker.address)
    for _ in range(2):
        with client.request(KEY, wait_timeout=START_S) as session:
            works(session)
    assert all(not row["limits"] for row in client.summary()["servers"])
    wait_until(lambda: "not_named" in tracker.stderr(), SOON_S, "the tracker logs it")
    (line,) = [line for line in tracker.stderr().splitlines() if "not_named" in line]
    assert "WARNING" in line
    assert "--proxy-from 127.0.0.1" in line
    assert "--proxy-from" in server.stderr()


@every_way
@pytest.mark.parametrize("trackers", [None, "ours"])
def test_tvms_client_uses_a_server_behind_our_proxy(daemons: Daemons, trackers: str | None):
    key = "board"  # TVM's summary does not count keys with a colon
    rpc = pytest.importorskip("tvm.rpc")
    tracker = None if trackers is None else daemons.tracker(flavour=trackers)
    proxy = daemons.proxy(*(() if tracker is None else ("--tracker", tracker.where)))
    daemons.behind(proxy, key, "--slots", "2", flavour="ours").await_ready_line()
    if tracker is None:
        session = rpc.connect(*proxy.address, key, session_timeout=LIMIT_S)
    else:
        wait_free(tracker, key, 2, START_S)
        client = rpc.connect_tracker(*tracker.address)
        session = client.request(key, session_timeout=LIMIT_S)
        row = next(line.split() for line in client.text_summary().splitlines() if line.startswith(key))
        assert row == [key, "2", "1", "0"]  # total, free, pending
    echo = session.get_function("testing.echo")
    assert echo(41) == 41
    time.sleep(LIMIT_S + 0.5)
    with pytest.raises(Exception, match="RPCSessionTimeoutError"):
        echo(41)


@pytest.fixture
def lab(daemons: Daemons) -> tuple[Daemon, Daemon, Daemon]:
    """Tracker, proxy and a server of one slot, all ours."""
    tracker = daemons.tracker()
    proxy = daemons.proxy("--tracker", tracker.where)
    server = behind(daemons, proxy, "--label", "shelf=3")
    wait_free(tracker, KEY, 1, START_S)
    return tracker, proxy, server


def test_labels_limits_renewal_and_operators_commands_work_behind_a_proxy(lab):
    tracker, _, _ = lab
    client = rpcsys.connect_tracker(tracker.address)
    with client.request(labels={"shelf": "3"}, session_timeout=600, wait_timeout=START_S) as session:
        assert client.renew(session, 60) == pytest.approx(60, abs=20)
        wait_until(lambda: client.leases()[0]["state"] == "running", SOON_S, "the tracker knows that it runs")
        (lease,) = client.leases()
        assert lease["address"] == "127.0.0.1"
        client.end_lease(lease["lease"], "its keeper needs the board")
        with pytest.raises(errors.SessionLost):
            wait_until(lambda: works(session), SOON_S, "the session ends")
    wait_free(tracker, KEY, 1, SOON_S)
    (server,) = client.summary()["servers"]
    client.drain(server["name"])
    wait_free(tracker, KEY, 0, SOON_S)
    client.enable(server["name"])
    wait_free(tracker, KEY, 1, SOON_S)
    with client.request(KEY, session_timeout=1, wait_timeout=START_S) as session, pytest.raises(errors.SessionTimeout):
        session.get_function("fault.nap")()


def test_sessions_and_registration_survive_a_restart_of_the_tracker(lab, daemons: Daemons):
    tracker, _, _ = lab
    port = tracker.address[1]
    with rpcsys.connect_tracker(tracker.address) as client, client.request(KEY) as session:
        tracker.kill()
        works(session)
        tracker = daemons.tracker(port=port)
        wait_until(lambda: f"server:{KEY}" in keys(tracker), SOON_S, "the server is registered")
        works(session)
    wait_free(tracker, KEY, 1, SOON_S)


def keys(tracker: Daemon) -> list[str]:
    with rpcsys.connect_tracker(tracker.address) as client:
        return [row["key"] for row in client.summary()["server_info"]]


# Killed processes


def zygote(server: Daemon) -> int:
    (process,) = server.children()
    return process.pid


PROCESSES: dict[str, Callable[[Daemon, Daemon, rpcsys.Session], int]] = {
    "session": lambda proxy, server, session: session.info["pid"],
    "zygote": lambda proxy, server, session: zygote(server),
    "server": lambda proxy, server, session: server.pid,
    "proxy": lambda proxy, server, session: proxy.pid,
}


@pytest.mark.parametrize("killed", PROCESSES)
def test_a_client_gets_session_lost_within_a_second(lab, killed: str, record_property):
    tracker, proxy, server = lab
    with rpcsys.connect_tracker(tracker.address) as client:
        session = client.request(KEY)
    pid = PROCESSES[killed](proxy, server, session)
    ended = []

    def call() -> None:
        with pytest.raises(errors.SessionLost):
            session.get_function("fault.nap")()
        ended.append(time.monotonic())

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    time.sleep(0.3)  # the call runs, and the receiver thread reads
    began = time.monotonic()
    psutil.Process(pid).kill()
    caller.join(SOON_S)
    assert ended
    record_property("error_after_s", round(ended[0] - began, 3))
    assert ended[0] - began < 5 * AT_ONCE_S
    if killed in ("session", "zygote"):
        wait_free(tracker, KEY, 1, START_S)
    else:
        wait_free(tracker, KEY, 0, SOON_S)


def test_a_restarted_server_is_offered_again(lab, daemons: Daemons):
    tracker, proxy, server = lab
    server.kill()
    again = behind(daemons, proxy)
    wait_free(tracker, KEY, 1, SOON_S)
    with rpcsys.connect_tracker(tracker.address) as client, client.request(KEY) as session:
        assert session.info["pid"] in descendants(again.pid)


def test_a_stopped_server_ends_its_sessions_and_unregisters(lab):
    tracker, _, server = lab
    with rpcsys.connect_tracker(tracker.address) as client:
        session = client.request(KEY)
        assert server.terminate(SOON_S) == 0
        with pytest.raises(errors.SessionLost):
            works(session)
        wait_until(lambda: not client.leases(), SOON_S, "the lease is over")
        assert f"server:{KEY}" not in keys(tracker)


# Errors


def test_a_proxy_without_a_server_of_the_key_is_an_error_with_advice(daemons: Daemons):
    proxy = daemons.proxy()
    with pytest.raises(errors.ServerUnreachable, match=r"no server of 'k' waits .start one: .*--through-proxy"):
        rpcsys.connect(*proxy.address, key="k", timeout=0.5)


def test_a_used_match_key_is_refused(lab):
    tracker, proxy, _ = lab
    with rpcsys.connect_tracker(tracker.address) as client, client.request(KEY) as session:
        used = session.lease["matchkey"]
        with pytest.raises(errors.ServerRefused, match="not served at"):
            rpcsys.connect(*proxy.address, key=used, timeout=SOON_S)


# Fake proxies


class FakeProxy:
    """Accepts connections, reads each greeting and calls ``answer``, until it is closed."""

    def __init__(self, answer: Callable[[socket.socket], None], link: bytes | None = None) -> None:
        self.answer = answer
        self.link = link  # its bytes as a tracker; None: it closes those connections
        self.linked = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.taken: list[socket.socket] = []
        self.greeted = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                self.taken.append(sock)
                sock.settimeout(SOON_S)
                with contextlib.suppress(OSError, errors.ProtocolError):
                    if sock.recv(4, socket.MSG_PEEK) == MAGIC:
                        self._link(sock)
                        continue
                    reader = handshake.OpeningReader()
                    while reader.result is None:
                        reader.receive(sock.recv(reader.needed))
                    self.greeted += 1
                    self.answer(sock)

    def _link(self, sock: socket.socket) -> None:
        with sock:
            if self.link is not None:
                self.linked += 1
                sock.recv(4)
                sock.sendall(MAGIC)
                sock.recv(65536)
                sock.sendall(self.link)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.taken:
            sock.close()


CLIENT = handshake.encode_greeting(handshake.Greeting("client", KEY, handshake.Options(session="rpcsys/1")))
ANSWERS: dict[str, Callable[[socket.socket], None]] = {
    "nothing": lambda sock: None,
    "an end": lambda sock: sock.close(),
    "a reset": lambda sock: (sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"), sock.close())[
        1
    ],
    "noise": lambda sock: sock.sendall(os.urandom(5000)),
    "half a key": lambda sock: sock.sendall(CLIENT[:-5]),
    "two clients": lambda sock: sock.sendall(2 * CLIENT),
    "a server": lambda sock: sock.sendall(CLIENT.replace(b"client:", b"server:")),
    "a duplicate": lambda sock: sock.sendall(handshake.encode_duplicate()),
    "a mismatch": lambda sock: sock.sendall(handshake.encode_mismatch()),
    "a client that leaves": lambda sock: (sock.sendall(CLIENT), sock.close())[1],
}


@pytest.fixture
def fake_proxy() -> Iterator[Callable[..., FakeProxy]]:
    made: list[FakeProxy] = []

    def make(answer: Callable[[socket.socket], None], link: bytes | None = None) -> FakeProxy:
        made.append(FakeProxy(answer, link))
        return made[-1]

    yield make
    for proxy in made:
        with contextlib.suppress(OSError):
            proxy.close()


@pytest.mark.slow
@pytest.mark.one_path
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_fake_proxy_costs_little_and_a_real_one_at_its_address_serves(daemons: Daemons, fake_proxy, answer: str):
    false = fake_proxy(ANSWERS[answer])
    place = ("--through-proxy", "--host", "127.0.0.1", "--port", str(false.port), "--key", KEY)
    server = daemons.launch("server", (sys.executable, "-m", "rpcsys.server", *place, *BARE))
    server.await_ready_line()
    wait_until(lambda: false.greeted, SOON_S, "the server has connected")
    time.sleep(3)
    greeted, held = false.greeted, psutil.Process(server.pid).num_fds()
    assert greeted < 40  # the backoff grows; a session that ends at once takes time, too
    assert server.running()
    time.sleep(3)
    assert psutil.Process(server.pid).num_fds() <= held + 2  # the connection that is being opened
    false.close()
    proxy = daemons.proxy(port=false.port)
    session = rpcsys.connect(*proxy.address, key=KEY, timeout=START_S)
    works(session)
    session.close()
    assert "Traceback" not in server.stderr()


TAKEN = {"op": "taken", "id": 1, "lease": "l", "epoch": 1, "matchkey": "k:1", "user": "u", "address": "a"}
LINKS = {
    "an end": framed(WELCOME),
    "garbage": framed(WELCOME) + b"\xff" * 1000,
    "half a message": framed(WELCOME) + framed({**TAKEN, "limit_s": 5})[:-3],
    "invalid messages": framed(WELCOME) + framed({**TAKEN, "epoch": 2**60}) * 1000,
    "unknown leases": framed(WELCOME) + framed({**TAKEN, "limit_s": 5}) * 1000,
    "no welcome": framed({"ok": False, "message": "\x1b[2J"}),
    "a frame without end": framed(WELCOME) + b"\xff\xff\xff\x7f",
}


@pytest.mark.slow
@pytest.mark.one_path
@pytest.mark.parametrize("said", LINKS)
def test_a_fake_tracker_behind_a_fake_proxy_costs_little(daemons: Daemons, fake_proxy, said: str):
    """The server reconnects with backoff; a real proxy at the same address serves."""
    false = fake_proxy(ANSWERS["an end"], LINKS[said])
    place = ("--through-proxy", "--host", "127.0.0.1", "--port", str(false.port), "--key", KEY)
    server = daemons.launch("server", (sys.executable, "-m", "rpcsys.server", *place, *BARE))
    server.await_ready_line()
    wait_until(lambda: false.linked >= 3, START_S, "the server reconnects")
    before = false.linked
    time.sleep(1)
    assert false.linked - before < 20
    assert server.running()
    assert psutil.Process(server.pid).memory_info().rss < 200 << 20
    false.close()
    tracker = daemons.tracker()
    daemons.proxy("--tracker", tracker.where, port=false.port)
    with rpcsys.connect_tracker(tracker.address) as client:
        with client.request(KEY, wait_timeout=60, wait_for_key=True) as session:
            works(session)
    log = server.stderr()
    assert "Traceback" not in log
    assert log.replace("\n", "").isprintable()
    assert log.count("\n") < 60


def test_many_clients_leave_no_descriptors(lab):
    tracker, proxy, server = lab
    held = psutil.Process(server.pid).num_fds(), psutil.Process(proxy.pid).num_fds()
    with rpcsys.connect_tracker(tracker.address) as client:
        for _ in range(60):
            with client.request(KEY, wait_timeout=START_S):
                pass
    wait_free(tracker, KEY, 1, SOON_S)

    def same() -> bool:
        now = psutil.Process(server.pid).num_fds(), psutil.Process(proxy.pid).num_fds()
        return now[0] <= held[0] and now[1] <= held[1] + 1

    wait_until(same, SOON_S, f"{held} descriptors")
    assert queue(tracker, KEY) == {"free": 1, "pending": 0}
