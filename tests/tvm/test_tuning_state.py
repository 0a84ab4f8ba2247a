"""What becomes of candidates, as transcripts."""

from __future__ import annotations

import random

import pytest

from rpcsys.tvm.artefact import Artefact
from rpcsys.tvm.tuning_state import TRANSITIONS, Candidate, CandidateQueue, Happening, Standing


def candidates(count: int) -> list[Candidate]:
    return [Candidate(Artefact(f"{number}.so"), "cpu:0", ()) for number in range(count)]


def queued(count: int) -> tuple[CandidateQueue, list[Candidate]]:
    queue, made = CandidateQueue(), candidates(count)
    for candidate in made:
        queue.add(candidate)
    return queue, made


def test_candidates_are_taken_in_order() -> None:
    queue, (a, b) = queued(2)
    assert len(queue) == 2
    assert [queue.take(fresh=False) for _ in range(3)] == [a, b, None]
    assert a.standing is Standing.UNDER_WAY


def test_the_one_that_ran_waits_for_a_session_of_its_own_and_the_others_come_first() -> None:
    queue, (a, b, c) = queued(3)
    queue.take(fresh=True), queue.take(fresh=False)
    assert queue.lost([a, b]) is None
    assert (a.standing, b.standing) == (Standing.SUSPECTED, Standing.WAITING)
    assert [queue.take(fresh=False) for _ in range(3)] == [b, c, None]
    assert len(queue) == 1
    assert queue.take(fresh=True) is a
    assert a.standing is Standing.ALONE


def test_a_second_loss_is_its_own_error() -> None:
    queue, (a,) = queued(1)
    queue.take(fresh=True)
    queue.lost([a])
    queue.take(fresh=True)
    assert queue.lost([a]) is a
    assert a.standing is Standing.DONE
    a.answer(error=ValueError("its own"))
    assert isinstance(a.outcome.exception(), ValueError)


def test_what_did_not_run_keeps_its_standing() -> None:
    queue, (a, b) = queued(2)
    queue.take(fresh=True)
    queue.lost([a])
    assert queue.take(fresh=True) is a
    queue.put_back([a])
    assert a.standing is Standing.SUSPECTED
    queue.take(fresh=False)
    queue.put_back([b])
    assert list(queue) == [a, b]


def test_one_whose_result_is_known_is_taken_out() -> None:
    queue, (a, b) = queued(2)
    queue.remove(a)
    a.answer([1.0])
    assert a.outcome.result() == [1.0]
    assert queue.first(5) == [b]
    assert queue.drain() == [b]
    assert len(queue) == 0


def test_an_outcome_is_set_once() -> None:
    [a] = candidates(1)
    a.answer([1.0])
    with pytest.raises(KeyError):
        a.move(Happening.ANSWERED)


def test_every_standing_has_its_transitions_and_reaches_the_end() -> None:
    assert set(TRANSITIONS) == set(Standing)
    reached = {Standing.WAITING}
    for _ in Standing:
        reached |= {after for standing in reached for after in TRANSITIONS[standing].values()}
    assert reached == set(Standing)


@pytest.mark.parametrize("seed", range(20))
def test_every_candidate_gets_an_outcome_whatever_boards_do(seed: int) -> None:
    chance = random.Random(seed)
    queue, made = queued(12)
    while len(queue):
        under_way: list[Candidate] = []
        for fresh in (True, False):
            taken = queue.take(fresh=fresh)
            if taken is not None:
                under_way.append(taken)
            if taken is not None and taken.standing is Standing.ALONE:
                break
        what = chance.choice(["lost", "back", "answered", "answered"])
        if what == "lost":
            failed = queue.lost(under_way)
            if failed is not None:
                failed.answer(error=ValueError())
        elif what == "back":
            queue.put_back(under_way)
        else:
            for candidate in under_way:
                candidate.answer([1.0])
    assert all(candidate.outcome.done() for candidate in made)
