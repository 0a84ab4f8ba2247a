"""Which streams the proxy joins, as transcripts."""

from __future__ import annotations

import pytest

from rpcsys.proxy.state import EARLY_S
from tests.proxy.transcripts import ProxyTranscript


@pytest.fixture
def transcript() -> ProxyTranscript:
    return ProxyTranscript(timeout_client=60, timeout_server=300)


# Without a tracker


def test_a_client_is_joined_with_a_waiting_server(transcript: ProxyTranscript) -> None:
    server = transcript.server()
    client = transcript.client()
    assert transcript.pairs == [(client, server)]
    assert not transcript.state.waiting


def test_a_server_is_joined_with_a_waiting_client(transcript: ProxyTranscript) -> None:
    client = transcript.client()
    transcript.client("rpi3")
    server = transcript.server()
    assert transcript.pairs == [(client, server)]


@pytest.mark.parametrize("secret", ["", "-" + "cd" * 16])
def test_of_a_pinned_match_key_the_public_name_counts(transcript: ProxyTranscript, secret: str) -> None:
    """A client in the clear says its secret; its server decides whether that is allowed."""
    name = "board:t1-" + "ab" * 32
    server = transcript.server(name)
    client = transcript.client(name + secret)
    early = transcript.client("rpi4:t1-" + "ab" * 32 + secret)
    late = transcript.server("rpi4:t1-" + "ab" * 32)
    assert transcript.pairs == [(client, server), (early, late)]


def test_a_key_is_compared_whole(transcript: ProxyTranscript) -> None:
    transcript.server("10.0.0.9:5555:board")
    transcript.client("10.0.0.9:5555")
    assert transcript.pairs == []
    client = transcript.client("10.0.0.9:5555:board")
    assert transcript.pairs == [(client, 1)]


def test_a_second_server_of_a_key_is_a_duplicate(transcript: ProxyTranscript) -> None:
    transcript.server()
    second = transcript.server()
    assert transcript.refused == {second: "duplicate"}
    assert "rpi4" in transcript.reasons[second]
    transcript.client()
    third = transcript.server()  # the first is joined: the next may wait, as with TVM's proxy
    assert third in transcript.state.waiting.by_conn


def test_a_second_client_of_a_key_is_a_duplicate(transcript: ProxyTranscript) -> None:
    transcript.client()
    second = transcript.client()
    assert transcript.refused == {second: "duplicate"}


def test_streams_of_one_server_are_not_duplicates(transcript: ProxyTranscript) -> None:
    first, second = transcript.server(id="7"), transcript.server(id="7")
    other, nameless = transcript.server(id="8"), transcript.server()
    assert transcript.refused == {other: "duplicate", nameless: "duplicate"}
    clients = [transcript.client() for _ in range(2)]
    assert transcript.pairs == [(clients[0], second), (clients[1], first)]


def test_a_server_with_an_identity_is_a_duplicate_of_one_without(transcript: ProxyTranscript) -> None:
    transcript.server()
    assert transcript.refused == {transcript.server(id="7"): "duplicate"}


def test_clients_of_our_server_queue(transcript: ProxyTranscript) -> None:
    """It parks another stream as soon as one is joined; a client that arrives in between is not a duplicate."""
    parked = transcript.server(id="7")
    clients = [transcript.client() for _ in range(3)]
    assert transcript.pairs == [(clients[0], parked)]
    again = [transcript.server(id="7") for _ in range(2)]
    assert transcript.pairs[1:] == [(clients[1], again[0]), (clients[2], again[1])]
    assert not transcript.refused


def test_the_queue_ends_with_the_servers_last_stream(transcript: ProxyTranscript) -> None:
    parked = transcript.server(id="7")
    transcript.client()
    transcript.leave(parked)
    transcript.client()
    assert transcript.refused == {transcript.client(): "duplicate"}


def test_an_ended_stream_is_not_joined(transcript: ProxyTranscript) -> None:
    transcript.leave(transcript.server())
    client = transcript.client()
    transcript.leave(client)
    transcript.server()
    assert transcript.pairs == []
    transcript.leave(client)  # a second time changes nothing


@pytest.mark.parametrize(("come", "after"), [(ProxyTranscript.client, 60), (ProxyTranscript.server, 300)])
def test_a_waiting_stream_is_refused_at_its_deadline(transcript: ProxyTranscript, come, after: float) -> None:
    conn = come(transcript)
    transcript.wait(after - 1)
    assert not transcript.refused
    transcript.wait(1)
    assert transcript.refused == {conn: "mismatch"}
    assert transcript.state.next_deadline is None


def test_the_oldest_stream_expires_first(transcript: ProxyTranscript) -> None:
    first = transcript.client("a")
    transcript.wait(10)
    second = transcript.client("b")
    server = transcript.server("c")
    transcript.wait(50)
    assert list(transcript.refused) == [first]
    transcript.wait(10)
    assert list(transcript.refused) == [first, second]
    transcript.wait(1000)
    assert list(transcript.refused) == [first, second, server]


# With a tracker


@pytest.fixture
def tracked() -> ProxyTranscript:
    transcript = ProxyTranscript(tracked=True)
    transcript.tracker_up()
    return transcript


def test_a_server_is_offered_and_joined_under_its_match_key(tracked: ProxyTranscript) -> None:
    servers = [tracked.server("a:b"), tracked.server("a:b"), tracked.server("c")]
    assert tracked.offered == ["a:b:r0", "a:b:r1", "c:r2"]
    assert tracked.presented == [("a:b",), ("a:b", "c")]
    client = tracked.client("a:b:r1")
    assert tracked.pairs == [(client, servers[1])]


def test_a_match_key_is_valid_once(tracked: ProxyTranscript) -> None:
    tracked.server()
    tracked.client("rpi4:r0")
    late = tracked.client("rpi4:r0")
    tracked.wait(EARLY_S)
    assert tracked.refused == {late: "mismatch"}


@pytest.mark.parametrize("key", ["rpi4", "rpi4:guess", ":", ""])
def test_without_a_match_key_a_client_is_not_joined(tracked: ProxyTranscript, key: str) -> None:
    tracked.server()
    client = tracked.client(key)
    tracked.wait(EARLY_S)
    assert tracked.refused == {client: "mismatch"}


def test_a_parked_stream_has_no_deadline(tracked: ProxyTranscript) -> None:
    tracked.server()
    tracked.wait(1e6)
    assert not tracked.refused
    assert len(tracked.state.waiting) == 1


def test_a_server_may_offer_its_streams_itself(tracked: ProxyTranscript) -> None:
    server = tracked.server("a:b:secret", id="7", offered=True)
    assert tracked.offered == []
    assert tracked.presented == []
    assert tracked.state.counts() == {("server", "a:b"): 1}
    client = tracked.client("a:b:secret")
    assert tracked.pairs == [(client, server)]


def test_a_client_may_arrive_before_the_offered_stream(tracked: ProxyTranscript) -> None:
    client = tracked.client("rpi4:secret")
    tracked.wait(EARLY_S / 2)
    server = tracked.server("rpi4:secret", id="7", offered=True)
    assert tracked.pairs == [(client, server)]


def test_of_two_streams_with_one_match_key_the_newest_is_joined(tracked: ProxyTranscript) -> None:
    """The old one may be dead without a sign; a stream of another server is refused."""
    tracked.server("rpi4:secret", id="7", offered=True)
    new = tracked.server("rpi4:secret", id="7", offered=True)
    thief = tracked.server("rpi4:secret", id="8", offered=True)
    assert tracked.refused == {thief: "duplicate"}
    client = tracked.client("rpi4:secret")
    assert tracked.pairs == [(client, new)]


# Bounds and the end


def test_the_number_of_waiting_streams_is_bounded() -> None:
    transcript = ProxyTranscript(max_waiting=3, max_waiting_per_address=2)
    kept = [transcript.server("a"), transcript.server("b")]
    greedy = transcript.server("c")
    kept.append(transcript.client("d"))
    late = transcript.client("e")
    assert transcript.refused == {greedy: "", late: ""}
    assert "--max-waiting-per-address" in transcript.reasons[greedy]
    assert "--max-waiting" in transcript.reasons[late]
    clients = [transcript.client("a"), transcript.client("b")]  # a client that need not wait is admitted
    assert transcript.pairs == list(zip(clients, kept, strict=False))
    transcript.server("c")
    assert len(transcript.refused) == 2


def test_draining_refuses_waiting_and_new_streams(transcript: ProxyTranscript) -> None:
    waiting = [transcript.server("a"), transcript.client("b")]
    transcript.client("a")
    transcript.drain()
    late = transcript.server("c")
    assert list(transcript.refused) == [waiting[1], late]
    assert set(transcript.refused.values()) == {""}
    assert transcript.state.next_deadline is None


def test_ended_streams_leave_no_state(transcript: ProxyTranscript) -> None:
    for _ in range(3):
        server = transcript.server(id="7")
        transcript.client()
        transcript.leave(server)
        transcript.leave(transcript.client("x"))
        transcript.client("y")
        transcript.wait(100)
    empty = ProxyTranscript(timeout_client=60, timeout_server=300).state
    assert vars(transcript.state) == vars(empty)
    assert transcript.is_replayed()
