"""Who meets whom, as transcripts."""

from __future__ import annotations

import pytest

from rpcsys.proxy.state import EARLY_S
from tests.proxy.transcripts import Scene


@pytest.fixture
def scene() -> Scene:
    return Scene(timeout_client=60, timeout_server=300)


# Without a tracker.


def test_a_client_meets_the_server_that_waits(scene: Scene) -> None:
    server = scene.server()
    client = scene.client()
    assert scene.pairs == [(client, server)]
    assert not scene.state.waiting


def test_a_server_meets_the_client_that_waits(scene: Scene) -> None:
    client = scene.client()
    scene.client("rpi3")
    server = scene.server()
    assert scene.pairs == [(client, server)]


def test_a_key_is_compared_whole(scene: Scene) -> None:
    scene.server("10.0.0.9:5555:board")
    scene.client("10.0.0.9:5555")
    assert scene.pairs == []
    client = scene.client("10.0.0.9:5555:board")
    assert scene.pairs == [(client, 1)]


def test_a_second_server_of_a_key_is_a_duplicate(scene: Scene) -> None:
    scene.server()
    second = scene.server()
    assert scene.refused == {second: "duplicate"}
    assert "rpi4" in scene.reasons[second]
    scene.client()
    third = scene.server()  # the first is taken: the next may wait, as with TVM's proxy
    assert third in scene.state.waiting.by_conn


def test_a_second_client_of_a_key_is_a_duplicate(scene: Scene) -> None:
    scene.client()
    second = scene.client()
    assert scene.refused == {second: "duplicate"}


def test_streams_of_one_server_are_no_duplicates(scene: Scene) -> None:
    first, second = scene.server(id="7"), scene.server(id="7")
    other, nameless = scene.server(id="8"), scene.server()
    assert scene.refused == {other: "duplicate", nameless: "duplicate"}
    clients = [scene.client() for _ in range(2)]
    assert scene.pairs == [(clients[0], second), (clients[1], first)]


def test_a_nameless_server_is_a_duplicate_of_itself_only(scene: Scene) -> None:
    scene.server()
    assert scene.refused == {scene.server(id="7"): "duplicate"}


def test_clients_of_one_of_our_servers_stand_in_line(scene: Scene) -> None:
    """It parks another stream as soon as one is taken; who comes in between is no duplicate."""
    parked = scene.server(id="7")
    clients = [scene.client() for _ in range(3)]
    assert scene.pairs == [(clients[0], parked)]
    again = [scene.server(id="7") for _ in range(2)]
    assert scene.pairs[1:] == [(clients[1], again[0]), (clients[2], again[1])]
    assert not scene.refused


def test_when_its_sessions_are_over_the_line_is_too(scene: Scene) -> None:
    parked = scene.server(id="7")
    scene.client()
    scene.leave(parked)
    scene.client()
    assert scene.refused == {scene.client(): "duplicate"}


def test_who_leaves_is_met_by_nobody(scene: Scene) -> None:
    scene.leave(scene.server())
    client = scene.client()
    scene.leave(client)
    scene.server()
    assert scene.pairs == []
    scene.leave(client)  # a second time changes nothing


@pytest.mark.parametrize(("come", "after"), [(Scene.client, 60), (Scene.server, 300)])
def test_waiting_has_an_end(scene: Scene, come, after: float) -> None:
    conn = come(scene)
    scene.wait(after - 1)
    assert not scene.refused
    scene.wait(1)
    assert scene.refused == {conn: "mismatch"}
    assert scene.state.next_deadline is None


def test_the_first_to_come_is_the_first_whose_time_is_over(scene: Scene) -> None:
    first = scene.client("a")
    scene.wait(10)
    second = scene.client("b")
    server = scene.server("c")
    scene.wait(50)
    assert list(scene.refused) == [first]
    scene.wait(10)
    assert list(scene.refused) == [first, second]
    scene.wait(1000)
    assert list(scene.refused) == [first, second, server]


# With a tracker.


@pytest.fixture
def tracked() -> Scene:
    scene = Scene(tracked=True)
    scene.tracker_up()
    return scene


def test_a_server_is_offered_and_met_under_its_match_key(tracked: Scene) -> None:
    servers = [tracked.server("a:b"), tracked.server("a:b"), tracked.server("c")]
    assert tracked.offered == ["a:b:r0", "a:b:r1", "c:r2"]
    assert tracked.presented == [("a:b",), ("a:b", "c")]
    client = tracked.client("a:b:r1")
    assert tracked.pairs == [(client, servers[1])]


def test_a_match_key_serves_once(tracked: Scene) -> None:
    tracked.server()
    tracked.client("rpi4:r0")
    late = tracked.client("rpi4:r0")
    tracked.wait(EARLY_S)
    assert tracked.refused == {late: "mismatch"}


@pytest.mark.parametrize("key", ["rpi4", "rpi4:guess", ":", ""])
def test_a_key_alone_opens_nothing(tracked: Scene, key: str) -> None:
    tracked.server()
    client = tracked.client(key)
    tracked.wait(EARLY_S)
    assert tracked.refused == {client: "mismatch"}


def test_a_parked_stream_waits_as_long_as_it_lives(tracked: Scene) -> None:
    tracked.server()
    tracked.wait(1e6)
    assert not tracked.refused
    assert len(tracked.state.waiting) == 1


def test_a_server_may_offer_its_streams_itself(tracked: Scene) -> None:
    server = tracked.server("a:b:secret", id="7", offered=True)
    assert tracked.offered == []
    assert tracked.presented == []
    assert tracked.state.counts() == {("server", "a:b"): 1}
    client = tracked.client("a:b:secret")
    assert tracked.pairs == [(client, server)]


def test_a_client_may_come_before_the_stream_that_was_offered(tracked: Scene) -> None:
    client = tracked.client("rpi4:secret")
    tracked.wait(EARLY_S / 2)
    server = tracked.server("rpi4:secret", id="7", offered=True)
    assert tracked.pairs == [(client, server)]


def test_of_two_streams_with_one_match_key_the_newest_is_taken(tracked: Scene) -> None:
    """The old one may have died without a word; a third party is refused."""
    tracked.server("rpi4:secret", id="7", offered=True)
    new = tracked.server("rpi4:secret", id="7", offered=True)
    thief = tracked.server("rpi4:secret", id="8", offered=True)
    assert tracked.refused == {thief: "duplicate"}
    client = tracked.client("rpi4:secret")
    assert tracked.pairs == [(client, new)]


# Bounds and the end.


def test_how_many_wait_is_bounded() -> None:
    scene = Scene(max_waiting=3, max_waiting_per_address=2)
    kept = [scene.server("a"), scene.server("b")]
    greedy = scene.server("c")
    kept.append(scene.client("d"))
    late = scene.client("e")
    assert scene.refused == {greedy: "", late: ""}
    assert "--max-waiting-per-address" in scene.reasons[greedy]
    assert "--max-waiting" in scene.reasons[late]
    clients = [scene.client("a"), scene.client("b")]  # who need not wait may come
    assert scene.pairs == list(zip(clients, kept, strict=False))
    scene.server("c")
    assert len(scene.refused) == 2


def test_draining_refuses_all_that_wait_and_all_that_come(scene: Scene) -> None:
    waiting = [scene.server("a"), scene.client("b")]
    scene.client("a")
    scene.drain()
    late = scene.server("c")
    assert list(scene.refused) == [waiting[1], late]
    assert set(scene.refused.values()) == {""}
    assert scene.state.next_deadline is None


def test_what_is_over_leaves_nothing(scene: Scene) -> None:
    for _ in range(3):
        server = scene.server(id="7")
        scene.client()
        scene.leave(server)
        scene.leave(scene.client("x"))
        scene.client("y")
        scene.wait(100)
    empty = Scene(timeout_client=60, timeout_server=300).state
    assert vars(scene.state) == vars(empty)
    assert scene.is_replayed()
