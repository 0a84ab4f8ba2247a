"""The costs of calls to several devices of one board."""

from __future__ import annotations

import pytest

from rpcsys.graph._plan.cost_model import Board, DeviceLink, Span, UnitTensor, traffic
from rpcsys.graph._plan.costs import Costs
from rpcsys.graph._plan.optimum import best

FAR = DeviceLink(0.5, 100, 10, calls=4)
NONE = DeviceLink(0.0, float("inf"), float("inf"))


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


def test_a_measured_call_replaces_the_expected_one() -> None:
    costs = Costs([1] * 4, [NONE, NONE], traffic(line(4), 4), [Board((0, 1), FAR)])
    costs.learn_call([Span(0, 0, 2), Span(1, 2, 4)], 7.0)
    costs.learn_call([Span(0, 0, 1)], 9.0)
    (there, back) = costs.chains("throughput")
    assert (there.costs[0, 4], back.costs[0, 4]) == (7.0, pytest.approx(2))
    assert costs.stage_s(Span(0, 0, 1)) == 9.0


def test_the_calls_of_a_division_are_the_runs_of_stages_on_one_board() -> None:
    costs = Costs([1] * 6, [NONE, NONE, None], traffic(line(6), 6), [Board((0, 1), FAR)])
    spans = [Span(0, 0, 1), Span(1, 1, 4), Span(2, 4, 6)]
    assert costs.calls_s(spans) == pytest.approx([100, 2])  # 1000 bytes come back
    assert costs.calls_s([Span(0, 0, 2), Span(1, 2, 6)]) == pytest.approx([4])
    costs.learn_call(spans[:2], 5.0)
    assert costs.calls_s(spans) == [5.0, 2.0]
