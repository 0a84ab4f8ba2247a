"""The best division, compared with trying all divisions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.graph._plan.cost_model import DeviceLink, Goal, Matrix, Span, UnitTensor, sums, traffic
from rpcsys.graph._plan.costs import Costs
from rpcsys.graph._plan.optimum import MOST_UNITS, best, even, thinned

GOALS: tuple[Goal, ...] = ("throughput", "latency")
_SECONDS = st.floats(0, 10).map(lambda seconds: round(seconds, 2))


@st.composite
def matrices(draw: st.DrawFn) -> list[Matrix]:
    """Random costs of spans of 1 to 6 units on 1 to 3 devices."""
    units, devices = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    row = st.lists(_SECONDS, min_size=units + 1, max_size=units + 1)
    square = st.lists(row, min_size=units + 1, max_size=units + 1)
    return [np.array(draw(square)) for _ in range(devices)]


def every_way(units: int, orders: Sequence[Sequence[int]]) -> Iterator[list[Span]]:
    """Every division of the units over devices in one of these orders, as a list of spans."""
    for order in orders:
        for stages in range(1, min(len(order), units) + 1):
            for devices in itertools.combinations(order, stages):
                for cuts in itertools.combinations(range(1, units), stages - 1):
                    ends = (0, *cuts, units)
                    yield [Span(d, a, b) for d, a, b in zip(devices, ends, ends[1:], strict=False)]


def figures(costs: Sequence[Matrix], spans: Sequence[Span]) -> list[float]:
    return [float(costs[span.device][span.start, span.stop]) for span in spans]


def test_spans_cover_the_model_in_order() -> None:
    spans = best([sums([1, 1, 1, 1])] * 2, "throughput")
    assert spans == [Span(0, 0, 2), Span(1, 2, 4)]


@given(matrices(), st.booleans())
def test_best_throughput_is_the_best_of_all(costs: list[Matrix], any_order: bool) -> None:
    units, devices = len(costs[0]) - 1, range(len(costs))
    orders = list(itertools.permutations(devices)) if any_order else [tuple(devices)]
    found = best(costs, "throughput", list(devices) if any_order else None)
    ways = [figures(costs, way) for way in every_way(units, orders)]
    slowest = min(map(max, ways))
    assert max(figures(costs, found)) == slowest
    assert sum(figures(costs, found)) == pytest.approx(min(sum(w) for w in ways if max(w) == slowest))


@given(matrices(), st.booleans())
def test_best_latency_is_the_best_of_all(costs: list[Matrix], any_order: bool) -> None:
    units, devices = len(costs[0]) - 1, range(len(costs))
    orders = list(itertools.permutations(devices)) if any_order else [tuple(devices)]
    found = best(costs, "latency", list(devices) if any_order else None)
    expected = min(sum(figures(costs, way)) for way in every_way(units, orders))
    assert sum(figures(costs, found)) == pytest.approx(expected)
    assert any(found == way for way in every_way(units, orders))


@given(st.lists(_SECONDS, min_size=1, max_size=8), st.integers(1, 5))
def test_even_uses_every_device(seconds: list[float], devices: int) -> None:
    spans = even(seconds, devices)
    assert [span.device for span in spans] == list(range(min(devices, len(seconds))))
    ends = [0, *(span.stop for span in spans)]
    assert ends == [*(span.start for span in spans), len(seconds)]
    slowest = max(sum(seconds[span.start : span.stop]) for span in spans)
    ways = [way for way in every_way(len(seconds), [range(len(spans))]) if len(way) == len(spans)]
    assert slowest == pytest.approx(min(max(sum(seconds[span.start : span.stop]) for span in way) for way in ways))


def test_a_far_device_is_left_out_when_the_way_costs_more_than_it_saves() -> None:
    tensors = [UnitTensor(10, 0, (1,)), UnitTensor(10, 1, (), result=True)]
    for rate, devices in ((1e3, [0, 1]), (1.0, [0])):
        costs = Costs([1, 1], [None, DeviceLink(0, rate, rate)], traffic(tensors, 2))
        spans = best([costs.matrix(0), costs.matrix(1)], "throughput")
        assert [span.device for span in spans] == devices


def test_like_devices_share_and_do_not_help_latency() -> None:
    costs = Costs([1, 1], [None, None], traffic([], 2))
    assert len(best([costs.matrix(0), costs.matrix(1)], "throughput")) == 2
    assert sum(figures([costs.matrix(0), costs.matrix(1)], best([costs.matrix(0)] * 2, "latency"))) == 2


def test_many_positions_are_thinned_to_where_least_crosses() -> None:
    nodes = 3000
    positions = list(range(1, nodes))
    crossing = [1.0 if position % 5 == 0 else 9.0 for position in positions]
    kept = thinned(positions, [1.0] * nodes, crossing)
    assert kept == sorted(set(kept))
    assert len(kept) < MOST_UNITS
    assert all(position % 5 == 0 for position in kept)
    assert thinned([1, 2, 3], [1.0] * 4, [1, 1, 1]) == [1, 2, 3]


@pytest.mark.parametrize("goal", GOALS)
def test_one_unit_is_one_stage(goal: Goal) -> None:
    assert best([np.array([[0, 1.0], [0, 0]])] * 3, goal)[0].stop == 1
