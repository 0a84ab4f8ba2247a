"""The best cuts, against trying all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.graph import planning
from rpcsys.graph.planning import Costs, Goal, Link, Matrix, Span, Tensor, best, even, thinned, traffic

GOALS: tuple[Goal, ...] = ("throughput", "latency")
_SECONDS = st.floats(0, 10).map(lambda seconds: round(seconds, 2))


@st.composite
def matrices(draw: st.DrawFn) -> list[Matrix]:
    """What spans of 1 to 6 units cost on 1 to 3 devices: any numbers at all."""
    units, devices = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    row = st.lists(_SECONDS, min_size=units + 1, max_size=units + 1)
    square = st.lists(row, min_size=units + 1, max_size=units + 1)
    return [np.array(draw(square)) for _ in range(devices)]


@st.composite
def flows(draw: st.DrawFn) -> tuple[int, list[Tensor]]:
    """Tensors between 1 to 6 units."""
    units = draw(st.integers(1, 6))
    tensors = []
    for _ in range(draw(st.integers(0, 8))):
        maker = draw(st.integers(-1, units - 1))
        takers = draw(st.lists(st.integers(maker + 1, units), max_size=3).map(tuple))
        tensors.append(
            Tensor(
                draw(st.integers(1, 100)),
                maker,
                tuple(taker for taker in takers if taker < units),
                maker >= 0 and draw(st.booleans()),
            )
        )
    return units, tensors


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
    spans = best([planning._sums([1, 1, 1, 1])] * 2, "throughput")
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
def test_even_leaves_no_device_out(seconds: list[float], devices: int) -> None:
    spans = even(seconds, devices)
    assert [span.device for span in spans] == list(range(min(devices, len(seconds))))
    ends = [0, *(span.stop for span in spans)]
    assert ends == [*(span.start for span in spans), len(seconds)]
    slowest = max(sum(seconds[span.start : span.stop]) for span in spans)
    ways = [way for way in every_way(len(seconds), [range(len(spans))]) if len(way) == len(spans)]
    assert slowest == pytest.approx(
        min(max(sum(seconds[span.start : span.stop]) for span in way) for way in ways)
    )


@given(flows())
def test_traffic_is_what_crosses_the_ends_of_a_span(flow: tuple[int, list[Tensor]]) -> None:
    units, tensors = flow
    found = traffic(tensors, units)
    for start, stop in itertools.combinations(range(units + 1), 2):
        inside = range(start, stop)
        taken = sum(t.nbytes for t in tensors if t.maker < start and any(u in inside for u in t.takers))
        given_ = sum(
            t.nbytes
            for t in tensors
            if t.maker in inside and (t.result or any(taker >= stop for taker in t.takers))
        )
        assert found.taken[start, stop] == taken
        assert found.given[start, stop] == given_


def costs_of(seconds: Sequence[float], links: Sequence[Link | None], tensors: Sequence[Tensor] = ()) -> Costs:
    return Costs(seconds, links, traffic(tensors, len(seconds)))


def test_a_span_behind_a_link_costs_its_round_trip() -> None:
    tensors = [Tensor(100, -1, (0,)), Tensor(40, 0, (1,)), Tensor(7, 1, (), result=True)]
    costs = costs_of([1.0, 2.0], [None, Link(0.5, 100, 10)], tensors)
    assert costs.stage_s(Span(0, 0, 2)) == 3.0
    assert costs.stage_s(Span(1, 0, 2)) == pytest.approx(3 + 0.5 + 1 + 0.7)
    assert costs.stage_s(Span(1, 0, 1)) == pytest.approx(1 + 0.5 + 1 + 4)
    assert costs.stage_s(Span(1, 1, 2)) == pytest.approx(2 + 0.5 + 0.4 + 0.7)


def test_a_skip_connection_past_a_remote_stage_does_not_cross_its_link() -> None:
    skip = [Tensor(1000, 0, (2,)), Tensor(1, 0, (1,)), Tensor(1, 1, (2,))]
    costs = costs_of([1, 1, 1], [Link(0, 1, 1)], skip)
    assert costs.stage_s(Span(0, 1, 2)) == 3
    assert costs.stage_s(Span(0, 2, 3)) == 1 + 1001


def test_a_far_device_is_left_out_when_the_way_costs_more_than_it_saves() -> None:
    tensors = [Tensor(10, 0, (1,)), Tensor(10, 1, (), result=True)]
    for rate, devices in ((1e3, [0, 1]), (1.0, [0])):
        costs = costs_of([1, 1], [None, Link(0, rate, rate)], tensors)
        spans = best([costs.matrix(0), costs.matrix(1)], "throughput")
        assert [span.device for span in spans] == devices


def test_like_devices_share_and_do_not_help_latency() -> None:
    costs = costs_of([1, 1], [None, None])
    assert len(best([costs.matrix(0), costs.matrix(1)], "throughput")) == 2
    assert sum(figures([costs.matrix(0), costs.matrix(1)], best([costs.matrix(0)] * 2, "latency"))) == 2


def test_what_is_measured_scales_a_device_and_then_its_span() -> None:
    costs = costs_of([1, 2, 3], [None, None])
    assert not costs.measured(Span(0, 0, 2))
    costs.learn(Span(0, 0, 2), 6.0, 6.5)
    assert costs.measured(Span(0, 0, 2))
    assert costs.stage_s(Span(0, 0, 2)) == 6.5
    assert costs.work_s(Span(0, 0, 3)) == pytest.approx(12)
    assert costs.work_s(Span(1, 0, 3)) == 6
    costs.learn(Span(0, 2, 3), 12.0, 12.0)
    assert costs.work_s(Span(0, 0, 3)) == pytest.approx(18)


def test_a_span_of_no_time_at_all_can_be_learned() -> None:
    costs = costs_of([0, 0], [None])
    costs.learn(Span(0, 0, 2), 1e-6, 1e-6)
    assert costs.stage_s(Span(0, 0, 2)) == 1e-6


def test_many_positions_are_thinned_to_where_least_crosses() -> None:
    nodes = 3000
    positions = list(range(1, nodes))
    crossing = [1.0 if position % 5 == 0 else 9.0 for position in positions]
    kept = thinned(positions, [1.0] * nodes, crossing)
    assert kept == sorted(set(kept))
    assert len(kept) < planning.MOST_UNITS
    assert all(position % 5 == 0 for position in kept)
    assert thinned([1, 2, 3], [1.0] * 4, [1, 1, 1]) == [1, 2, 3]


@pytest.mark.parametrize("goal", GOALS)
def test_one_unit_is_one_stage(goal: Goal) -> None:
    assert best([np.array([[0, 1.0], [0, 0]])] * 3, goal)[0].stop == 1


def test_calls_under_way_let_work_and_both_ways_overlap() -> None:
    alone, several = Link(1.0, 10, 10), Link(1.0, 10, 10, calls=4)
    assert alone.pace(2.0, 10, 30) == 2 + 1 + 1 + 3
    assert several.pace(2.0, 10, 30) == 3
    assert several.pace(5.0, 10, 30) == 5
    assert several.pace(0.1, 1, 1) == pytest.approx(1.3 / 4)
    assert several.pace(np.array([2.0, 5.0]), 10, 30).tolist() == [3, 5]
