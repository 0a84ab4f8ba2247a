"""Who is measured when, and what becomes of the answers; no process takes part."""

import os

import pytest

from benchmarks.case import Case, Measured, Reading
from benchmarks.figures import MILLISECONDS, at_most
from benchmarks.harness import Effort, Harness, cores

OURS, RAW, LOCAL = Measured("rpcsys", "call"), Measured("raw", "call"), Measured("local", "run")
SLOW = Measured("tvm", "call", slow=True)
READING = Reading("a call", "seconds", MILLISECONDS, {"raw": at_most(1.6)})


class Scripted:
    """Workers that answer from a script, and note who was asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def measure(self, measured, budget_s):
        self.asked.append(measured.subject)
        answers = self.answers[measured.subject]
        answer = answers.pop(0) if isinstance(answers, list) else answers
        return answer if isinstance(answer, str) else {"seconds": answer}


def run(case, workers, rounds=3):
    harness = Harness(workers, Effort(rounds, slow_rounds=1, budget_s=0.1), progress=lambda text: None)
    return list(harness.run([case]))


def test_rounds_are_interleaved_and_slow_peers_have_fewer():
    workers = Scripted(rpcsys=1.0, raw=1.0, tvm=1.0)
    run(Case("c", OURS, {"raw": (RAW,), "tvm": (SLOW,)}, (READING,)), workers)
    assert workers.asked == ["rpcsys", "raw", "tvm", "rpcsys", "raw", "rpcsys", "raw"]


def test_a_figure_is_the_median_of_its_rounds():
    workers = Scripted(rpcsys=[9.0, 3.0, 2.0], raw=[2.0, 50.0, 1.0])
    (row,) = run(Case("c", OURS, {"raw": (RAW,)}, (READING,)), workers)
    assert (row.ours, row.theirs, row.ratio, row.passed) == (3.0, 2.0, 1.5, True)


def test_a_peer_of_several_parts_is_their_sum():
    workers = Scripted(rpcsys=6.0, raw=1.0, local=3.0)
    (row,) = run(Case("c", OURS, {"both": (LOCAL, RAW)}, (READING,)), workers)
    assert (row.peer, row.theirs, row.ratio) == ("both", 4.0, 1.5)


def test_a_part_that_two_peers_share_is_measured_once_a_round():
    workers = Scripted(rpcsys=6.0, raw=1.0, local=3.0)
    run(Case("c", OURS, {"both": (LOCAL, RAW), "local": (LOCAL,)}, (READING,)), workers, rounds=1)
    assert workers.asked == ["rpcsys", "local", "raw"]


def test_who_cannot_be_measured_is_asked_once_and_says_why():
    workers = Scripted(rpcsys=1.0, raw="no such package")
    (row,) = run(Case("c", OURS, {"raw": (RAW,)}, (READING,)), workers)
    assert workers.asked.count("raw") == 1
    assert (row.ours, row.theirs, row.passed, row.notes) == (1.0, None, None, ("raw: no such package",))


def test_a_round_that_fails_leaves_the_figures_before_it():
    workers = Scripted(rpcsys=1.0, raw=[2.0, "lost"])
    (row,) = run(Case("c", OURS, {"raw": (RAW,)}, (READING,)), workers)
    assert (row.theirs, row.notes) == (2.0, ("raw: lost",))


def test_a_case_may_have_several_readings():
    other = Reading("again", "seconds", MILLISECONDS)
    rows = run(Case("c", OURS, {"raw": (RAW,)}, (READING, other)), Scripted(rpcsys=1.0, raw=1.0))
    assert [row.what for row in rows] == ["a call", "again"]


def test_cores_are_ones_this_process_may_use():
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no affinity on this system")
    assert set(cores()) <= os.sched_getaffinity(0)
