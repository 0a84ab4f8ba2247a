"""The cost of spans: on devices, over links, and after measurements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.graph._plan.cost_model import DeviceLink, Span, UnitTensor, traffic
from rpcsys.graph._plan.costs import Costs


@st.composite
def flows(draw: st.DrawFn) -> tuple[int, list[UnitTensor]]:
    """Tensors between 1 to 6 units."""
    units = draw(st.integers(1, 6))
    tensors = []
    for _ in range(draw(st.integers(0, 8))):
        maker = draw(st.integers(-1, units - 1))
        takers = draw(st.lists(st.integers(maker + 1, units), max_size=3).map(tuple))
        tensors.append(
            UnitTensor(
                draw(st.integers(1, 100)),
                maker,
                tuple(taker for taker in takers if taker < units),
                maker >= 0 and draw(st.booleans()),
            )
        )
    return units, tensors


@given(flows())
def test_traffic_is_what_crosses_the_ends_of_a_span(flow: tuple[int, list[UnitTensor]]) -> None:
    units, tensors = flow
    found = traffic(tensors, units)
    for start, stop in itertools.combinations(range(units + 1), 2):
        inside = range(start, stop)
        taken = sum(t.nbytes for t in tensors if t.maker < start and any(u in inside for u in t.takers))
        given_ = sum(
            t.nbytes for t in tensors if t.maker in inside and (t.result or any(taker >= stop for taker in t.takers))
        )
        assert found.taken[start, stop] == taken
        assert found.given[start, stop] == given_


def costs_of(seconds: Sequence[float], links: Sequence[DeviceLink | None], tensors: Sequence[UnitTensor] = ()) -> Costs:
    return Costs(seconds, links, traffic(tensors, len(seconds)))


def test_a_span_behind_a_link_costs_its_round_trip() -> None:
    tensors = [UnitTensor(100, -1, (0,)), UnitTensor(40, 0, (1,)), UnitTensor(7, 1, (), result=True)]
    costs = costs_of([1.0, 2.0], [None, DeviceLink(0.5, 100, 10)], tensors)
    assert costs.stage_s(Span(0, 0, 2)) == 3.0
    assert costs.stage_s(Span(1, 0, 2)) == pytest.approx(3 + 0.5 + 1 + 0.7)
    assert costs.stage_s(Span(1, 0, 1)) == pytest.approx(1 + 0.5 + 1 + 4)
    assert costs.stage_s(Span(1, 1, 2)) == pytest.approx(2 + 0.5 + 0.4 + 0.7)


def test_a_skip_connection_past_a_remote_stage_does_not_cross_its_link() -> None:
    skip = [UnitTensor(1000, 0, (2,)), UnitTensor(1, 0, (1,)), UnitTensor(1, 1, (2,))]
    costs = costs_of([1, 1, 1], [DeviceLink(0, 1, 1)], skip)
    assert costs.stage_s(Span(0, 1, 2)) == 3
    assert costs.stage_s(Span(0, 2, 3)) == 1 + 1001


def test_a_measurement_scales_the_device_and_later_its_span() -> None:
    costs = costs_of([1, 2, 3], [None, None])
    costs.learn(Span(0, 0, 2), 6.0, 6.5)
    assert costs.stage_s(Span(0, 0, 2)) == 6.5
    assert costs.work_s(Span(0, 0, 3)) == pytest.approx(12)
    assert costs.work_s(Span(1, 0, 3)) == 6
    costs.learn(Span(0, 2, 3), 12.0, 12.0)
    assert costs.work_s(Span(0, 0, 3)) == pytest.approx(18)


def test_a_span_of_zero_seconds_can_be_learned() -> None:
    costs = costs_of([0, 0], [None])
    costs.learn(Span(0, 0, 2), 1e-6, 1e-6)
    assert costs.stage_s(Span(0, 0, 2)) == 1e-6


def test_with_calls_under_way_work_and_transfers_overlap() -> None:
    alone, several = DeviceLink(1.0, 10, 10), DeviceLink(1.0, 10, 10, calls=4)
    assert alone.pace(2.0, 10, 30) == 2 + 1 + 1 + 3
    assert several.pace(2.0, 10, 30) == 3
    assert several.pace(5.0, 10, 30) == 5
    assert several.pace(0.1, 1, 1) == pytest.approx(1.3 / 4)
    assert several.pace(np.array([2.0, 5.0]), 10, 30).tolist() == [3, 5]
