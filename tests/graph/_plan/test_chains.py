"""Divisions of spans over devices of one board, compared with trying all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.graph._plan.chains import chains
from rpcsys.graph._plan.cost_model import Board, DeviceLink, Goal, Matrix, Span, UnitTensor, sums, traffic
from rpcsys.graph._plan.costs import Costs
from rpcsys.graph._plan.optimum import best

FAR = DeviceLink(0.5, 100, 10, calls=4)
NONE = DeviceLink(0.0, float("inf"), float("inf"))


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


def line(units: int, nbytes: float = 1000.0) -> list[UnitTensor]:
    """Large tensors between neighbours; small ones at both ends."""
    inner = [UnitTensor(nbytes, unit, (unit + 1,)) for unit in range(units - 1)]
    return [UnitTensor(1, -1, (0,)), *inner, UnitTensor(1, units - 1, (), result=True)]


def test_what_flows_between_devices_of_a_board_does_not_cross_its_link() -> None:
    costs = Costs([1, 1, 1, 1], [NONE, NONE], traffic(line(4), 4), [Board((0, 1), FAR)])
    (there, _) = costs.chains("throughput")
    assert there.spans(0, 4) == [Span(0, 0, 2), Span(1, 2, 4)]
    assert there.costs[0, 4] == pytest.approx(2)
    assert costs.stage_s(Span(0, 0, 4)) == pytest.approx(4)
    assert costs.stage_s(Span(0, 0, 2)) == pytest.approx(100)  # alone, its output crosses
    (one, _) = costs.chains("latency")
    assert one.total[0, 4] == 4


def test_a_stage_pays_the_way_to_its_device_in_its_turn() -> None:
    costs = Costs([1, 1], [NONE, DeviceLink(0.0, 1000, 500)], traffic(line(2), 2), [Board((0, 1), FAR)])
    (there, _) = costs.chains("throughput")
    assert there.slowest[0, 2] == pytest.approx(1 + 1 + 1 / 500)


def test_a_board_of_two_devices_is_used_as_one_call() -> None:
    costs = Costs([1] * 4, [NONE, NONE], traffic(line(4), 4), [Board((0, 1), FAR)])
    matrices = [costs.matrix(0), costs.matrix(1)]
    assert len(best(matrices, "throughput", [0, 1])) == 1
    spans = best(matrices, "throughput", [0, 1], chains=costs.chains("throughput"))
    assert [span.device for span in spans] in ([0, 1], [1, 0])
    kept = best(matrices, "throughput", chains=costs.chains("throughput", keep_order=True))
    assert [span.device for span in kept] == [0, 1]


def test_two_boards_of_two_devices_and_a_machine_share_a_model() -> None:
    near = DeviceLink(0.0, 1e9, 1e9, calls=4)
    costs = Costs([1] * 10, [None, *[NONE] * 4], traffic(line(10), 10), [Board((1, 2), near), Board((3, 4), near)])
    matrices = [costs.matrix(device) for device in range(5)]
    spans = best(matrices, "throughput", list(range(5)), chains=costs.chains("throughput"))
    assert sorted(span.device for span in spans) == [0, 1, 2, 3, 4]
    assert [span.stop - span.start for span in spans] == [2] * 5


@given(matrices(), st.booleans())
def test_chains_that_cost_what_their_stages_cost_change_nothing(costs: list[Matrix], any_order: bool) -> None:
    alike = list(range(len(costs))) if any_order else None
    more = list(chains(dict(enumerate(costs)), "throughput", keep_order=not any_order))

    def slowest(spans: list[Span]) -> float:
        return max(float(costs[span.device][span.start, span.stop]) for span in spans)

    assert slowest(best(costs, "throughput", alike, chains=more)) == slowest(best(costs, "throughput", alike))


def test_a_measured_call_replaces_the_expected_one() -> None:
    costs = Costs([1] * 4, [NONE, NONE], traffic(line(4), 4), [Board((0, 1), FAR)])
    costs.learn_call([Span(0, 0, 2), Span(1, 2, 4)], 7.0)
    costs.learn_call([Span(0, 0, 1)], 9.0)
    (there, back) = costs.chains("throughput")
    assert (there.costs[0, 4], back.costs[0, 4]) == (7.0, pytest.approx(2))
    assert costs.stage_s(Span(0, 0, 1)) == 9.0
