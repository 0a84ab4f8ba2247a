"""The supervisor and its children's messages. User code shares some child processes, so any message is possible."""

from __future__ import annotations

import contextlib
import json
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.link.admission import Admission
from rpcsys.server.config import parse
from rpcsys.server.sandbox import messages
from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.actions import Log
from rpcsys.server.supervisor.children import Spawner
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.deployments_io import DeploymentsIo
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.records import Policy
from rpcsys.server.supervisor.state import DeviceServerState

SESSION, HOST = 1, 2
KINDS = {SESSION: ChildKind.SESSION, HOST: ChildKind.HOST}
FORGED = "x\n2026-01-01 00:00:00,000 rpcsys-server INFO all is well\x1b[2J"
WORDS = sorted({*messages.OF_ZYGOTE, *messages.OF_SERVICE})

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.just(FORGED)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["kind", "functions"]), inner),
    max_leaves=6,
)
random_message = st.dictionaries(st.sampled_from(WORDS), values, max_size=4).map(
    lambda fields: json.dumps(fields).encode()
)
anything = st.binary(max_size=200) | random_message
ODD = [
    b"[" * 60000,
    b'{"load": [1e999, 0, 0]}',
    b'{"load": [9' + b"9" * 5000 + b", 0, 0]}",
    b'{"limit_s": NaN}',
    b'{"ready": true}',
    b'{"ready": true, "pid": 1e400}',
    json.dumps({"failed": FORGED}).encode(),
    json.dumps({"outcome": [], "removed": {"a": 1}}).encode(),
    json.dumps({"dead": SESSION}).encode(),
    b'"importing"',
    b"\xff\xfe",
]


class Supervisor(Spawner):
    """A spawner with a server's state. The test plays the zygote and the children."""

    def __init__(self, tmp_path) -> None:
        self.loop = Loop()
        self.orders: list[dict] = []
        self.ends: dict[int, socket.socket] = {}
        super().__init__(self.loop, {})
        self._control, self.zygote = messages.pair()
        self._control.setblocking(False)
        self.loop.add(self._control.fileno(), self._read_zygote)
        clients = Clients(self.loop, None, "k", Admission())
        config = parse(["--key", "k", "--deploy", str(tmp_path), "--deploy-workers", "1"])
        self.deployments = DeploymentsIo(self.loop, config, clients, self, lambda *_: None)
        self.state = DeviceServerState(Policy(key="k", slots=1, deploy=True))
        self.logged: list[str] = []

    def _order(self, descriptor, **order) -> None:
        self.orders.append(order)
        if descriptor is not None:
            self.ends[order["spawn"]] = socket.socket(fileno=os.dup(descriptor))

    def _sweep(self) -> bool:
        """Find nothing below this zygote: the processes below this one belong to other tests."""
        return True

    def handle_messages(self, rounds: int = 20) -> None:
        """Run the loop and give the events to the state."""
        for _ in range(rounds):
            self.loop.run_once(0)
        while self.loop.events:
            actions = self.state.handle(self.loop.events.popleft())
            self.logged += [action.text for action in actions if isinstance(action, Log)]

    def close(self) -> None:
        for child in list(self.ends):
            self._forget(child)
            self.ends[child].close()
        self.zygote.close()
        if self._control is not None:
            self._control.close()
        os.close(self.deployments._lock)
        self.loop.close()


@pytest.fixture
def supervisor(tmp_path):
    made = Supervisor(tmp_path)
    made.spawn(SESSION, KINDS[SESSION])
    made.spawn(HOST, KINDS[HOST])
    yield made
    made.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("child", [SESSION, HOST])
@pytest.mark.parametrize("data", ODD)
def test_an_invalid_message_ends_only_its_sender(supervisor, child, data):
    try:
        supervisor.ends[child].send(data)
    except OSError:
        pytest.skip("the system takes no message of that length")
    supervisor.handle_messages()
    other = HOST if child == SESSION else SESSION
    assert supervisor._control_of(other) is not None
    assert all(line.isprintable() for line in supervisor.logged)


@given(data=st.data())
def test_random_messages_of_children_do_no_harm(tmp_path_factory, data):
    supervisor = Supervisor(tmp_path_factory.mktemp("deployed"))
    try:
        for child in (SESSION, HOST):
            supervisor.spawn(child, KINDS[child])
        supervisor.handle_messages()
        for child, words in data.draw(st.lists(st.tuples(st.sampled_from([SESSION, HOST]), anything), max_size=8)):
            if words:
                try:
                    supervisor.ends[child].send(words)
                except OSError:
                    continue  # the supervisor has closed its socket
            supervisor.handle_messages(4)
        assert all(line.isprintable() for line in supervisor.logged)
        assert supervisor.state.deadline() is None or supervisor.state.deadline() < float("inf")
    finally:
        supervisor.close()


@given(words=anything.filter(bool))
def test_random_messages_of_a_zygote_do_no_harm(tmp_path_factory, words):
    supervisor = Supervisor(tmp_path_factory.mktemp("deployed"))
    try:
        supervisor.spawn(SESSION, KINDS[SESSION])
        supervisor.zygote.send(words)
        supervisor.handle_messages(4)
        assert all(line.isprintable() for line in supervisor.logged)
    finally:
        supervisor.close()


@pytest.mark.parametrize("child", [SESSION, HOST])
def test_unwanted_descriptors_are_closed(supervisor, child, tmp_path):
    kinds = [os.open(tmp_path, os.O_RDONLY), os.open("/dev/null", os.O_RDWR), *os.pipe()]
    listener, (one, two) = socket.socket(), socket.socketpair()
    kinds += [listener.detach(), one.detach(), two.detach(), socket.socket(type=socket.SOCK_DGRAM).detach()]
    before = open_descriptors()
    for words in (b'{"moved": "peer", "greeted": true}', b'{"load": [0, 0, 0]}', b"{", b'{"opened": true}'):
        for descriptor in kinds:
            try:
                messages.send(supervisor.ends[child], words, descriptor)
            except OSError:
                supervisor.spawn(child, KINDS[child])  # replaces it
            supervisor.handle_messages(4)
    for each in kinds:
        os.close(each)
    supervisor._forget(child)
    supervisor.handle_messages()
    assert open_descriptors() <= before


def flood(supervisor, child: int, words: bytes, times: int) -> None:
    """Send the same message again and again, until the socket is closed."""
    with contextlib.suppress(OSError):
        for _ in range(times):
            supervisor.ends[child].send(words)
            supervisor.loop.run_once(0)
        pytest.fail("the socket stays open")


def test_a_sessions_messages_are_bounded(supervisor):
    flood(supervisor, SESSION, b'{"limit_s": 1.0}', 10 * messages.ALLOWED)
    heard = [event for event in supervisor.loop.events if isinstance(event, ev.LimitAsked)]
    assert len(heard) <= messages.ALLOWED


def test_what_a_session_sends_after_its_outcome_is_read_with_its_death(supervisor):
    supervisor.loop.events.clear()
    for words in (b'{"outcome": "closed"}', b'{"outcome": "closed", "removed": ["x"]}'):
        supervisor.ends[SESSION].send(words)
    for _ in range(3):
        supervisor.loop.run_once(0)
    assert [event.removed for event in supervisor.loop.events] == [()]
    supervisor.zygote.send(b'{"dead": %d, "status": 0, "starved": false, "cleaned": [], "removed": []}' % SESSION)
    supervisor.loop.run_once(0)
    assert [type(event) for event in supervisor.loop.events] == [ev.ChildDone, ev.ChildDone, ev.ChildDead]
    assert supervisor.loop.events[1].removed == ("x",)


def test_a_host_that_floods_is_killed(supervisor):
    words = b'{"load": [0, 0, 0], "more": "%s"}' % (b"x" * 20000)
    flood(supervisor, HOST, words, 10 * messages.ALLOWED_OF_SERVICE)
    assert {"kill": HOST} in supervisor.orders
    assert supervisor._control_of(SESSION) is not None


def test_children_take_turns_of_one_message(supervisor):
    for _ in range(3):
        supervisor.ends[HOST].send(b'{"load": [0, 0, 0]}')
    supervisor.ends[SESSION].send(b'{"ready": true, "pid": 8}')
    supervisor.loop.run_once(0)
    assert not any(isinstance(event, ev.ChildReady) for event in supervisor.loop.events)
    supervisor.zygote.send(b'{"born": %d, "pid": 7, "zygote": 6}' % SESSION)
    supervisor.loop.run_once(0)
    assert any(isinstance(event, ev.ChildReady) for event in supervisor.loop.events)
    assert supervisor.roots(SESSION) == (7,)


def test_failed_is_valid_before_ready_only(supervisor):
    supervisor.ends[SESSION].send(b'{"failed": "cannot import it"}')
    supervisor.loop.run_once(0)
    assert [event.why for event in supervisor.loop.events if isinstance(event, ev.Failed)] == ["cannot import it"]
    supervisor.loop.events.clear()
    for words in (b'{"ready": true, "pid": 7}', b'{"failed": "x"}'):
        supervisor.ends[SESSION].send(words)
        supervisor.loop.run_once(0)
    assert not any(isinstance(event, ev.Failed) for event in supervisor.loop.events)
