"""Replicas on a simulated engine: what is said is promised, in order, by one term at a time, whatever goes wrong."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tracker.replicas.simulation import Broken, World, leaders

RUNS = 150  # for a fault that must be found


def trouble(random: Random, *, guard: bool = True, holds: bool = True) -> World:
    """Twenty seconds of load and faults with three replicas."""
    world = World(random, random.choice((2, 3)), guard=guard, holds=holds)
    world.run(1.0)
    for _ in range(60):
        for _ in range(random.randrange(4)):
            world.request(reads=random.random() < 0.3)
        if random.random() < 0.25:
            world.fault()
        world.run(random.choice((0.001, 0.05, 0.3, 1.0)))
    return world


def check(seed: int) -> None:
    """Trouble, and then none: a leader serves, and all replicas have the same."""
    world = trouble(Random(seed))
    world.heal()
    world.run(15.0)
    (leader,) = leaders(world)
    before = len(world.said)
    world.request(reads=False)
    world.run(2.0)
    assert len(world.said) == before + 1, "a request that comes after all faults is served"
    promised = world.promised()
    for node in world.nodes:
        assert node.fold.through == promised.through
        assert list(node.fold.live.items()) == list(promised.live.items())
    assert leader.given is not None
    assert promised.epoch == max(leader.given)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 32))
def test_what_is_said_holds(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 32))
def test_what_is_said_holds_in_many_runs(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("without", [{"guard": False}, {"holds": False}], ids=["no-guard", "nothing-held"])
def test_without_the_guard_or_the_holding_it_breaks(without: dict[str, bool]) -> None:
    broken = 0
    for seed in range(RUNS):
        try:
            trouble(Random(seed), **without)
        except Broken:
            broken += 1
            if broken == 3:
                return
    pytest.fail(f"{broken} of {RUNS} runs without it break")


def test_the_load_reaches_all_that_may_go_wrong() -> None:
    """The runs have several terms, entries under way at the same time, and answers that were held."""
    terms = numbers = 0
    for seed in range(20):
        world = trouble(Random(seed))
        terms += len({said.term for said in world.said}) > 1
        numbers += world.highest
    assert terms > 10
    assert numbers > 400
