"""What the tracker is told of servers behind the proxy, as transcripts."""

from __future__ import annotations

import pytest

from rpcsys.proxy.offers import MAX_PRESENTED, UNUSED_S
from tests.proxy.transcripts import Scene


@pytest.fixture
def scene() -> Scene:
    scene = Scene(tracked=True)
    scene.tracker_up()
    return scene


def test_what_parked_before_the_tracker_was_there_is_offered_then() -> None:
    scene = Scene(tracked=True)
    server = scene.server()
    assert scene.offered == []
    scene.tracker_up()
    (match_key,) = scene.offered
    assert scene.presented == [("rpi4",)]
    client = scene.client(match_key)
    assert scene.pairs == [(client, server)]


def test_a_tracker_that_comes_back_hears_all_anew(scene: Scene) -> None:
    scene.server()
    (old,) = scene.offered
    scene.tracker_down()
    scene.server("rpi3")
    assert scene.offered == [old]  # nobody there to tell
    scene.tracker_up()
    assert len(scene.offered) == 2
    assert old not in scene.offered
    assert scene.presented[-1] == ("rpi3", "rpi4")


def test_a_match_key_that_brought_nobody_is_replaced(scene: Scene) -> None:
    server = scene.server()
    (first,) = scene.offered
    scene.pending(first)
    scene.wait(100)
    scene.pending()  # handed out
    scene.wait(UNUSED_S)
    scene.pending()
    assert scene.offered == [first]
    scene.wait(0.1)
    scene.pending()
    _, second = scene.offered
    scene.client(first)
    assert scene.pairs == []
    client = scene.client(second)
    assert scene.pairs == [(client, server)]


def test_one_that_is_pending_again_was_not_handed_out(scene: Scene) -> None:
    scene.server()
    (match_key,) = scene.offered
    scene.pending()
    scene.wait(UNUSED_S + 1)
    scene.pending(match_key)
    scene.pending()
    assert scene.offered == [match_key]


def test_an_offer_whose_server_died_is_withdrawn(scene: Scene) -> None:
    dead = scene.server()
    scene.server()
    first, second = scene.offered
    scene.leave(dead)
    assert scene.reconnects == 0
    scene.pending(first, second)
    assert scene.reconnects == 1
    scene.tracker_down()
    scene.tracker_up()
    assert len(scene.offered) == 1
    assert first not in scene.offered
    scene.pending(*scene.offered)
    assert scene.reconnects == 1


def test_one_that_was_handed_out_needs_no_withdrawal(scene: Scene) -> None:
    scene.leave(scene.server())
    scene.pending()
    scene.pending()
    assert scene.reconnects == 0


def test_a_client_on_its_way_finds_its_server_through_a_reconnect(scene: Scene) -> None:
    server, dead = scene.server(), scene.server()
    taken, offered = scene.offered
    scene.leave(dead)
    scene.pending(offered)
    assert scene.reconnects == 1
    scene.tracker_down()
    scene.tracker_up()
    assert scene.offered == []
    client = scene.client(taken)
    assert scene.pairs == [(client, server)]


def test_names_of_our_servers_move_with_their_match_keys(scene: Scene) -> None:
    """One that has no link to the tracker parks under its key, with its identity."""
    server = scene.server(id="7")
    scene.tracker_down()
    scene.tracker_up()
    assert dict(scene.state.waiting.owned) == {scene.offered[0]: 1}
    client = scene.client(scene.offered[0])
    scene.leave(server)
    assert scene.pairs == [(client, server)]
    assert not scene.state.waiting.owned
    assert scene.is_replayed()


def test_a_draining_proxy_offers_nothing(scene: Scene) -> None:
    scene.server()
    scene.drain()
    scene.offered.clear()
    scene.pending()
    scene.tracker_up()
    assert scene.offered == []


@pytest.mark.parametrize("key", ["a,b", "a]", "", "k" * 256])
def test_what_is_no_key_is_refused(scene: Scene, key: str) -> None:
    """The tracker would hang up, and everybody's offers would be gone."""
    server = scene.server(key)
    assert scene.refused == {server: "mismatch"}
    assert scene.offered == []


def test_what_the_tracker_is_told_fits_a_frame(scene: Scene) -> None:
    count = 2 * MAX_PRESENTED // 250
    for number in range(count):
        scene.server(f"{number:0250}", address=str(number))
    assert len(scene.offered) == count
    assert MAX_PRESENTED - 250 < sum(map(len, scene.presented[-1])) <= MAX_PRESENTED
    scene.server("short")
    assert "short" in scene.presented[-1]  # for which there is room
