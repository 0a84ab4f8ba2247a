"""Small labs with all events in any order: the lab's own accounts and the tracker's always agree."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rpcsys.wire import control
from tests.tracker.event_json import replay
from tests.tracker.simulation import Board, Lab

KEYS = st.sampled_from(["key0", "key1"])


class LabMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 999), boards=st.integers(1, 6))
    def begin(self, seed, boards):
        self.lab = Lab(boards, 2, seed)
        self.lab.length_s = lambda key: self.lab.random.choice([1.0, 20.0, 400.0])
        self.everybody = [self.lab.user_comes(f"user{n}", True) for n in range(3)]
        self.everybody += [self.lab.user_comes(f"10.9.0.{n}", False) for n in range(2)]

    def user(self, number, ours=False):
        user = self.everybody[number % (3 if ours else 5)]
        return user if user.conn in self.lab.users else None

    def board(self, number):
        boards = list(self.lab.boards.values())
        return boards[number % len(boards)] if boards else None

    @rule(number=st.integers(0, 4), key=KEYS, priority=st.sampled_from([0, 1, 1, 2]))
    def asks(self, number, key, priority):
        user = self.user(number)
        if user is not None:
            self.lab.request(user, key, priority)

    @rule(
        number=st.integers(0, 2),
        key=KEYS,
        count=st.integers(1, 3),
        rev=st.sampled_from([None, "0", "1", ">=1", "<2,!=0", "!=1.0"]),
        wait=st.sampled_from([None, 0.0, 30.0]),
    )
    def asks_for_more(self, number, key, count, rev, wait):
        user = self.user(number, ours=True)
        if user is not None:
            self.lab.request(user, key, 1, wait, count, None, {"rev": rev} if rev else None)

    @rule(number=st.integers(0, 20))
    def cancels(self, number):
        ours = [asked for asked in self.lab.asked.values() if asked.user.ours]
        if ours:
            asked = ours[number % len(ours)]
            self.lab.say(asked.user.conn, control.Cancel(self.lab.number(), asked.id))
            assert (asked.user.conn, asked.id) not in self.lab.asked

    @rule(number=st.integers(0, 4), returns_s=st.sampled_from([0.5, 20.0, 100.0]), tickets=st.booleans())
    def user_goes(self, number, returns_s, tickets):
        user = self.user(number)
        if user is not None:
            self.lab.user_goes(user, returns_s, tickets)

    @rule(number=st.integers(0, 9), returns_s=st.sampled_from([0.5, 5.0, 15.0]), lives=st.booleans())
    def board_goes(self, number, returns_s, lives):
        board = self.board(number)
        if board is not None:
            self.lab.board_goes(board, returns_s, lives)

    @rule(key=KEYS, ours=st.booleans())
    def board_comes(self, key, ours):
        self.lab.board_comes(Board(100 + self.lab.number(), key, ours))

    @rule(number=st.integers(0, 9), enable=st.booleans())
    def operator(self, number, enable):
        board = self.board(number)
        conn = self.everybody[0].conn
        if board is not None and board.ours and conn in self.lab.users:
            name = f"board{board.number}"
            kind = control.Enable if enable else control.Drain
            self.lab.say(conn, kind(self.lab.number(), name))

    @rule(seconds=st.sampled_from([0.1, 5.0, 60.0, 700.0]))
    def time_passes(self, seconds):
        self.lab.run(seconds)

    @invariant()
    def what_is_free_is_what_was_offered(self):
        if not hasattr(self, "lab"):
            return
        state = self.lab.state
        free = {offer.match_key for index in state.records.free_offers.by_fact.values() for offer in index.values()}
        gathered = {offer.match_key for request in state.records.waiting.values() for offer in request.gathered}
        offered = set(self.lab.offers)
        assert free | gathered <= offered
        assert not free & gathered
        for match_key in offered - free - gathered:
            assert not state.records.conditions[f"board{self.lab.offers[match_key].number}"].open
        assert set(state.records.waiting) == {
            request.arrival for queue in state.records.queues.values() for request in queue.waiting.values()
        }
        assert len(state.records.waiting) == len(self.lab.asked)

    @invariant()
    def nobody_waits_for_what_is_free(self):
        if not hasattr(self, "lab"):
            return
        state = self.lab.state
        for request in state.records.waiting.values():
            if not request.parked:
                assert state.records.free_offers.find(request.wants) is None, "somebody waits while a device is free"

    def teardown(self):
        lab, state = self.lab, self.lab.state
        for name in list(state.records.conditions):
            lab.say(lab.connect("10.0.0.9"), control.Enable(1, name))
        lab.run(200.0)
        lab.cancel_all()  # some want what there is not
        lab.finish()
        assert not state.records.leases
        assert not any(board.lease for board in lab.boards.values())
        keys = {board.key for board in lab.boards.values()}
        assert all(asked.key not in keys for asked in lab.asked.values())
        assert sum(state.records.free_offers.count(key) for key in state.records.queues) == len(lab.boards)
        assert replay(lab.log) == state


TestLab = pytest.mark.slow(LabMachine.TestCase)
TestLab.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_a_board_that_comes_back_without_its_session_holds_no_lease():
    """It came back without the session; a second break of its link does not bring the session back."""
    machine = LabMachine()
    machine.begin(seed=0, boards=1)
    machine.lab.length_s = lambda key: 400.0
    machine.board_comes("key1", ours=True)
    machine.asks(0, "key1", 1)
    machine.time_passes(0.1)
    machine.board_goes(1, 0.5, lives=False)
    machine.time_passes(5.0)
    machine.board_goes(1, 0.5, lives=True)
    machine.teardown()
