"""For which slots CPUs are pinned, as transcripts of a whole server."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.pinning import LINGER_S
from tests.server.transcripts import Transcript, only


@pytest.fixture
def board() -> Transcript:
    board = Transcript(slots=2, pin_governor=True)
    board.boot()
    return board


def pins(actions: list[do.Action]) -> list[tuple[int, ...]]:
    return [action.slots for action in only(actions, do.PinGovernors)]


def test_a_slot_is_pinned_while_it_has_a_session(board: Transcript) -> None:
    assert pins(board.greet(7)) == [(0,)]
    assert pins(board.greet(8)) == [(0, 1)]
    board.post(ev.ChildDone, 1, "closed")
    assert pins(board.child_dies(1)) == []
    assert pins(board.tick(LINGER_S / 2)) == []
    assert pins(board.tick(LINGER_S)) == [(1,)]
    board.post(ev.HungUp, 8)
    board.child_dies(2)
    assert pins(board.tick(2 * LINGER_S)) == [()]
    assert board.state.pinning is not None
    assert board.state.pinning.deadline() is None
    board.replay()


def test_the_next_session_finds_it_pinned(board: Transcript) -> None:
    board.greet(7)
    board.post(ev.HungUp, 7)
    board.child_dies(1)
    for child in [action.child for action in only(board.tick(0.1), do.Spawn)]:
        board.post(ev.ChildReady, child)
    assert pins(board.greet(9)) == []
    assert pins(board.tick(5 * LINGER_S)) == []


def test_without_the_flag_nothing_is_pinned() -> None:
    board = Transcript(slots=1)
    board.boot()
    assert pins(board.greet(7)) == []
    assert board.state.pinning is None
