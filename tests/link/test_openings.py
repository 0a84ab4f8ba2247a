"""Openings: how many there may be of an address, and how long."""

from __future__ import annotations

from rpcsys.link.openings import EACH, MOMENT_S, OPENING_S, Openings


def test_those_beyond_sixteen_of_an_address_have_a_moment() -> None:
    openings: Openings[int] = Openings(100)
    for conn in range(EACH + 2):
        assert openings.add(conn, "10.0.0.1:50000", 0.0) is None
    openings.add(50, "10.0.0.2:50000", 0.0)
    assert openings.deadline() == MOMENT_S
    assert openings.late(MOMENT_S) == [EACH, EACH + 1]
    assert openings.late(OPENING_S) == openings.all()


def test_what_has_said_a_name_has_the_whole_time() -> None:
    openings: Openings[int] = Openings(100)
    for conn in range(EACH + 2):
        openings.add(conn, "10.0.0.1:50000", 0.0, named=True)
    assert openings.deadline() == OPENING_S


def test_an_address_that_is_done_has_room_again() -> None:
    openings: Openings[int] = Openings(100)
    for conn in range(EACH):
        openings.add(conn, "10.0.0.1:50000", 0.0)
    assert openings.remove(3) == "10.0.0.1:50000"
    assert openings.remove(3) is None
    openings.add(99, "10.0.0.1:50000", 0.0)
    assert openings.deadline() == OPENING_S


def test_the_oldest_of_the_network_with_the_most_ends_for_one_too_many() -> None:
    openings: Openings[int] = Openings(4)
    peers = ["10.0.0.1:1", "2001:db8::1:1", "2001:db8::2:1", "10.0.0.2:1"]
    assert [openings.add(conn, peer, 0.0) for conn, peer in enumerate(peers)] == [None] * 4
    assert openings.add(4, "10.0.0.3:1", 0.0) == 1
