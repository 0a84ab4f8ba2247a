"""A week of a lab with 10,000 boards, 200 users and 100,000 requests, in seconds."""

import time

import pytest

from rpcsys.wire import control
from tests.tracker.event_json import replay
from tests.tracker.simulation import Lab

DAY_S = 86400.0


def spread(lab, requests, users, keys, seconds):
    """Spread requests and failures of many kinds over the time."""
    choose = lab.random
    for _ in range(requests):
        lab.later(choose.uniform(0, seconds), ask, lab, choose.choice(users), f"key{choose.randrange(keys)}")
    boards = list(lab.boards.values())
    for _ in range(requests // 50):
        board, returns_s = choose.choice(boards), choose.choice([1.0, 3.0, 30.0, 3600.0])
        lab.later(choose.uniform(0, seconds), lab.board_goes, board, returns_s, choose.random() < 0.5)
        user, tickets = choose.choice(users), choose.random() < 0.5
        lab.later(choose.uniform(0, seconds), lab.user_goes, user, choose.choice([0.5, 5.0, 50.0]), tickets)


def ask(lab, user, key):
    if user.conn not in lab.users:  # away just now
        return
    choose, rare = lab.random, lab.random.random()
    wait_timeout = 60.0 if rare < 0.05 else None
    count = 2 if 0.05 < rare < 0.07 else 1
    labels = {"rev": str(choose.randrange(3))} if 0.07 < rare < 0.1 else None
    if not user.ours:
        wait_timeout, count, labels = None, 1, None
    asked = lab.request(user, key, choose.choice([1, 1, 1, 2, 5]), wait_timeout, count, None, labels)
    if rare > 0.97 and (user.conn, asked.id) in lab.asked and user.ours:
        lab.later(10.0, cancel, lab, asked)


def cancel(lab, asked):
    if (asked.user.conn, asked.id) in lab.asked:
        lab.say(asked.user.conn, control.Cancel(lab.number(), asked.id))


def live(boards, hot_boards, eager_users, other_users, requests, seconds, seed=1):
    """Run a whole simulation; the device time of the hot key for users who always have waiting requests."""
    keys = boards // 25
    lab = Lab(boards, keys, seed, {"hot": hot_boards})
    usual_s = 0.7 * seconds * boards / requests  # most boards are leased most of the time
    lab.length_s = lambda key: lab.random.expovariate(1 / (400 if key == "hot" else usual_s))
    eager = [lab.user_comes(f"eager{n}", True, {"hot": 2}) for n in range(eager_users)]
    others = [lab.user_comes(f"10.2.0.{n}" if n % 4 == 0 else f"user{n}", n % 4 > 0) for n in range(other_users)]
    spread(lab, requests, others, keys, seconds)
    lab.run(seconds)
    for board in lab.boards.values():
        if board.key == "hot" and board.lease and "user" in board.lease:
            board.lease["user"].total["hot"] += lab.now - board.lease["at"]
    shares = [user.total["hot"] for user in eager]
    lab.finish()
    return lab, shares


def check(lab, shares, boards):
    mean = sum(shares) / len(shares)
    print(f"{len(lab.log)} events, {dict(lab.figures)}")
    print(f"shares of the mean: {min(shares) / mean:.3f} to {max(shares) / mean:.3f}")
    assert 0.9 < min(shares) / mean < max(shares) / mean < 1.1
    assert not lab.asked, "every request was served, given up or cancelled"
    free = sum(lab.state.records.free_offers.count(key) for key in lab.state.records.queues)
    assert free == len(lab.boards) == boards, "no board is lost"
    assert (lab.state.records.leases, lab.state.records.waiting) == ({}, {})
    assert replay(lab.log) == lab.state


@pytest.mark.slow
def test_a_day_in_a_lab():
    lab, shares = live(1_000, 5, 6, 40, 4_000, DAY_S)
    check(lab, shares, 1_000)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_week_in_a_large_lab():
    began = time.process_time()
    lab, shares = live(10_000, 10, 20, 180, 90_000, 7 * DAY_S)
    print(f"{time.process_time() - began:.1f} s of processor time for a week")
    assert lab.figures["requests"] > 95_000  # the eager users' own come to those of the others
    check(lab, shares, 10_000)
