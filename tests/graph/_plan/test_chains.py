"""Divisions of spans over devices of one board, compared with trying all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.graph._plan.chains import chains
from rpcsys.graph._plan.cost_model import Goal, Matrix, Span, sums
from rpcsys.graph._plan.optimum import best


@st.composite
def matrices(draw: st.DrawFn) -> list[Matrix]:
    """Random costs of spans of 3 to 6 units on 2 or 3 devices."""
    units = draw(st.integers(3, 6))
    seconds = st.floats(0, 10).map(lambda each: round(each, 2))
    row = st.lists(seconds, min_size=units + 1, max_size=units + 1)
    square = st.lists(row, min_size=units + 1, max_size=units + 1)
    return [np.array(draw(square)) for _ in range(draw(st.integers(2, 3)))]


def divisions(devices: Sequence[int], start: int, stop: int) -> list[list[Span]]:
    """Every division of a span over all of the devices, in this order."""
    found = []
    for cuts in itertools.combinations(range(start + 1, stop), len(devices) - 1):
        ends = (start, *cuts, stop)
        found.append([Span(d, a, b) for d, a, b in zip(devices, ends, ends[1:], strict=False)])
    return found


@given(matrices(), st.sampled_from(["throughput", "latency"]))
def test_a_chain_has_the_best_division_of_every_span(costs: list[Matrix], goal: Goal) -> None:
    join = max if goal == "throughput" else sum
    found = list(chains(dict(enumerate(costs)), goal))
    orders = [each for count in range(2, len(costs) + 1) for each in itertools.permutations(range(len(costs)), count)]
    assert [chain.devices for chain in found] == orders
    for chain in found:
        for start, stop in itertools.combinations(range(len(costs[0])), 2):
            ways = [[costs[s.device][s.start, s.stop] for s in w] for w in divisions(chain.devices, start, stop)]
            if not ways:
                assert chain.costs[start, stop] == np.inf
                continue
            assert chain.costs[start, stop] == pytest.approx(min(map(join, ways)))
            spans = chain.spans(start, stop)
            assert [span.device for span in spans] == list(chain.devices)
            mine = [costs[span.device][span.start, span.stop] for span in spans]
            assert join(mine) == pytest.approx(chain.costs[start, stop])
            assert (max(mine), sum(mine)) == pytest.approx((chain.slowest[start, stop], chain.total[start, stop]))


def test_in_the_order_given_no_chain_goes_back() -> None:
    found = chains(dict(enumerate([sums([1, 1, 1])] * 3)), "throughput", keep_order=True)
    assert [chain.devices for chain in found] == [(0, 1), (0, 2), (1, 2), (0, 1, 2)]


@given(matrices(), st.booleans())
def test_chains_that_cost_what_their_stages_cost_change_nothing(costs: list[Matrix], any_order: bool) -> None:
    alike = list(range(len(costs))) if any_order else None
    more = list(chains(dict(enumerate(costs)), "throughput", keep_order=not any_order))

    def slowest(spans: list[Span]) -> float:
        return max(float(costs[span.device][span.start, span.stop]) for span in spans)

    assert slowest(best(costs, "throughput", alike, chains=more)) == slowest(best(costs, "throughput", alike))
