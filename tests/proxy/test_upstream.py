"""Streams that are relayed to another daemon: links to the tracker, and chains of proxies."""

from __future__ import annotations

import json
import socket
import struct

import pytest

from rpcsys.errors import TrackerLost
from rpcsys.link.link import Link
from tests.link.fake_replicas import replicas
from tests.live.daemons import free_port, wait_until
from tests.live.probe import TRACKER_MAGIC, Probe
from tests.proxy.streams import Stream, gone, met, streams_of

HELLO = [1, {"op": "hello", "version": "0"}]


def frame(value) -> bytes:
    data = json.dumps(value).encode()
    return struct.pack("<i", len(data)) + data


class ScriptedTracker:
    """Accepts connections and keeps them open, for the test to read; ``hello`` is its answer to a hello."""

    def __init__(self, hello) -> None:
        self.hello = hello
        self.taken: list[Probe] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)

    @property
    def where(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def greeted(self) -> Probe:
        """Accept the next connection and exchange the magic."""
        probe = Probe.__new__(Probe)
        probe.socket, _ = self.listener.accept()
        probe.socket.settimeout(20)
        self.taken.append(probe)
        assert probe.read_int() == TRACKER_MAGIC
        probe.socket.sendall(struct.pack("<i", TRACKER_MAGIC))
        return probe

    def introduce(self, proxy) -> None:
        """Accept the proxy's own connection, and wait until the proxy has detected the tracker's kind."""
        probe = self.greeted()
        assert read_frame(probe)[0] == 1
        probe.socket.sendall(frame(self.hello))
        wait_until(lambda: "registered" in proxy.stderr(), 10, "the proxy is registered")

    def close(self) -> None:
        for one in (*self.taken, self.listener):
            one.close()


def read_frame(probe: Probe):
    return json.loads(probe.read(probe.read_int()))


@pytest.fixture
def ours():
    with_hello = ScriptedTracker({"ok": True, "tracker": "rpcsys"})
    yield with_hello
    with_hello.close()


@pytest.fixture
def theirs():
    without = ScriptedTracker(0)
    yield without
    without.close()


@pytest.mark.live
@pytest.mark.parametrize(("port", "shown"), [("", None), (":19090", 19090)])
def test_a_relayed_link_carries_its_address(daemons, ours, port, shown) -> None:
    proxy = daemons.proxy("--tracker", ours.where, "--custom-addr", "lab.example" + port)
    ours.introduce(proxy)
    link = Probe(proxy.address)
    link.socket.sendall(struct.pack("<i", TRACKER_MAGIC) + frame(HELLO))
    relayed = ours.greeted()
    me = list(link.socket.getsockname())
    assert read_frame(relayed) == {"op": "via", "address": me, "proxy": ["lab.example", shown or proxy.address[1]]}
    assert read_frame(relayed) == HELLO
    assert link.read_int() == TRACKER_MAGIC
    relayed.socket.sendall(frame({"ok": True}))
    assert read_frame(link) == {"ok": True}
    proxy.process.terminate()  # it does not wait for a link
    assert link.ended()
    assert proxy.process.wait(5) == 0


@pytest.mark.live
def test_each_proxy_of_a_chain_adds_a_links_address(daemons, ours) -> None:
    outer = daemons.proxy("--tracker", ours.where)
    ours.introduce(outer)
    inner = daemons.proxy("--next", outer.where)
    link = Probe(inner.address)
    link.socket.sendall(struct.pack("<i", TRACKER_MAGIC) + frame(HELLO))
    relayed = ours.greeted()
    first, second = read_frame(relayed), read_frame(relayed)
    assert first["proxy"] == [None, outer.address[1]]
    assert second["address"] == list(link.socket.getsockname())
    assert second["proxy"] == [None, inner.address[1]]
    assert read_frame(relayed) == HELLO


@pytest.mark.live
def test_a_stopping_proxy_of_a_chain_waits_for_sessions_only(daemons) -> None:
    outer = daemons.proxy()
    inner = daemons.proxy("--next", outer.where, "--grace", "20")
    parked = Stream(inner.address, "server:parked")
    server, client = Stream(inner.address, "server:k"), Stream(outer.address, "client:k")
    met(server)
    met(client)
    inner.process.terminate()
    gone(parked, 10)
    client.socket.sendall(b"on")
    assert server.read(2) == b"on"
    server.close()
    client.close()
    assert inner.process.wait(10) == 0


@pytest.mark.live
def test_streams_of_a_chain_are_joined_at_its_end(daemons) -> None:
    outer = daemons.proxy()
    inner = daemons.proxy("--next", outer.where)
    server = Stream(inner.address, "server:k", more=b"early")
    client = Stream(outer.address, "client:k")
    assert client.answer() == "server:k"
    assert server.answer() == "client:k"
    assert client.read(5) == b"early"
    server.close()
    assert client.ended()
    wait_until(lambda: not streams_of(inner), 5, "the chain is empty")


@pytest.mark.live
def test_links_and_chains_have_limits(daemons) -> None:
    outer = daemons.proxy()
    inner = daemons.proxy("--next", outer.where, "--max-waiting-per-address", "1")
    first = Stream(inner.address, "server:k")
    wait_until(lambda: streams_of(inner) == 2, 10, "the first is relayed")
    gone(Stream(inner.address, "server:l"), 10)
    first.close()
    wait_until(lambda: not streams_of(inner), 10, "the first is gone")
    server = Stream(inner.address, "server:l")
    met(Stream(outer.address, "client:l"))
    met(server)


@pytest.mark.live
def test_without_the_next_proxy_a_stream_is_closed(daemons) -> None:
    proxy = daemons.proxy("--next", f"127.0.0.1:{free_port()}")
    gone(Stream(proxy.address, "server:k"), 10)
    wait_until(lambda: "cannot relay" in proxy.stderr(), 5, "the reason is logged")


@pytest.mark.live
@pytest.mark.parametrize("tracker", ["none", "theirs"])
def test_without_a_tracker_of_ours_a_link_is_refused(daemons, theirs, tracker) -> None:
    proxy = daemons.proxy(*(() if tracker == "none" else ("--tracker", theirs.where)))
    if tracker == "theirs":
        theirs.introduce(proxy)
    with Probe(proxy.address) as link:
        link.socket.sendall(struct.pack("<i", TRACKER_MAGIC) + frame(HELLO))
        assert link.read_int() == TRACKER_MAGIC
        answer = read_frame(link)
        assert (answer["ok"], answer["error"]) == (False, "NoControlLink")
        assert link.ended()


@pytest.mark.live
def test_a_link_is_closed_while_the_tracker_is_down(daemons) -> None:
    """It is not refused: the tracker may be ours."""
    proxy = daemons.proxy("--tracker", f"127.0.0.1:{free_port()}")
    with Probe(proxy.address) as link:
        link.socket.sendall(struct.pack("<i", TRACKER_MAGIC))
        assert link.ended()


@pytest.mark.live
def test_a_relayed_link_goes_to_the_replica_that_leads(daemons) -> None:
    """The one to a leader that hangs is cut when another one leads."""
    with replicas(leader=1) as group:
        proxy = daemons.proxy("--tracker", group.text)
        wait_until(lambda: "registered" in proxy.stderr(), 10, "the proxy is registered")
        wait_until(lambda: sum(one.lookouts for one in group.each) == 1, 10, "it has a lookout")
        with Link.open(proxy.address) as link:
            assert [len(one.relayed) for one in group.each] == [0, 1, 0]
            group.each[1].pause()
            group.lead(2)
            with pytest.raises(TrackerLost):
                link.receive(20)
        with Link.open(proxy.address):
            assert [len(one.relayed) for one in group.each] == [0, 1, 1]
