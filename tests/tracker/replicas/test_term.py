"""A term says nothing that is not written, and nothing at all once it is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys.tracker.replicas import replica
from rpcsys.tracker.replicas.term import Term
from rpcsys.tracker.store import HistoryStore
from tests.tracker import entries
from tests.tracker.replicas.test_replica import leading


class Silent:
    def send_held(self, data: bytes) -> None:
        raise AssertionError("it is not to be sent")


@pytest.fixture
def store(tmp_path: Path) -> HistoryStore:
    made = HistoryStore(tmp_path, history_days=90)
    yield made
    made.close()


def test_a_turns_records_are_written_and_its_answers_held(store: HistoryStore) -> None:
    done: list[replica.Action] = []
    term = Term(6, store, leading(), done.extend)
    term.note(entries.joined("board", at=1.0))
    assert term.hold(Silent(), b"welcome")
    term.turn_over()
    (call,) = done
    assert isinstance(call, replica.EngineCall)
    assert isinstance(call.request, replica.Append)


@pytest.mark.parametrize("later", [False, True], ids=["deposed", "leads again"])
def test_a_term_that_is_over_says_and_writes_nothing(store: HistoryStore, later: bool) -> None:
    done: list[replica.Action] = []
    state = leading()
    term = Term(6, store, state, done.extend)
    if later:
        state.role.term = 7
    else:
        state.ledger = None
    term.note(entries.joined("board", at=1.0))
    assert term.hold(Silent(), b"welcome")
    term.turn_over()
    assert done == []
