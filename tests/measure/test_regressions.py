"""Which cells are called slower: single cases, and how often in simulated labs."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from scipy import stats

from rpcsys.measure.regressions import CellOutcome, cell_verdicts, confirmed, shift_of
from rpcsys.measure.tables import BenchBoard, BenchTable, Cell, Measured

CELL = Cell("m.onnx", "rpi4-1", "rpi4")
QUIET = (0.99, 1.01, 1.0, 0.995, 1.005, 1.0)  # medians of six sessions, relative


def row(factor: float = 1.0, cell: Cell = CELL, sessions: Collection[float] = QUIET, **more: object) -> Measured:
    """A cell of 10 ms times ``factor`` in such sessions, with three results each."""
    blocks = tuple((0.01 * factor * each, 0.0101 * factor * each, 0.0102 * factor * each) for each in sessions)
    return Measured(cell, blocks, **more)  # type: ignore[arg-type]


def table(*rows: Measured, pace: float = 1e-6, python: str = "3.11", spread: Collection[float] = QUIET) -> BenchTable:
    paces = tuple((pace * each, pace * each) for each in spread)
    return BenchTable(rows, {"rpi4-1": BenchBoard("rpi4", {}, {"python": python}, paces)})


def outcome(base: BenchTable, now: BenchTable, least: float = 0.02) -> CellOutcome:
    (verdict,) = cell_verdicts(base, now, least)
    assert "\n" not in str(verdict)
    return verdict.outcome


@pytest.mark.parametrize(
    ("factor", "least", "expected"),
    [
        (1.0, 0.02, CellOutcome.SAME),
        (1.01, 0.02, CellOutcome.SAME),
        (1.05, 0.02, CellOutcome.SLOWER),
        (0.95, 0.02, CellOutcome.FASTER),
        (1.05, 0.10, CellOutcome.SAME),
        (1.02, 0.02, CellOutcome.UNSURE),
        (1.005, 0.0, CellOutcome.UNSURE),
    ],
)
def test_a_change_counts_beyond_chance_and_the_least(factor: float, least: float, expected: CellOutcome) -> None:
    assert outcome(table(row()), table(row(factor)), least) is expected


def test_the_shift_has_welchs_interval() -> None:
    before, now = [1.0, 1.1, 0.9, 1.05], [2.0, 2.3, 1.9, 2.2, 2.1]
    shift = shift_of(before, now)
    import numpy as np

    expected = stats.ttest_ind(np.log(now), np.log(before), equal_var=False).confidence_interval(0.95)
    assert (shift.low, shift.high) == pytest.approx((np.expm1(expected.low), np.expm1(expected.high)))
    assert shift.ratio == pytest.approx(stats.gmean(now) / stats.gmean(before) - 1)


def test_sessions_without_any_spread_are_compared() -> None:
    same = [1.0] * 6
    assert outcome(table(row(sessions=same)), table(row(sessions=same))) is CellOutcome.SAME
    assert outcome(table(row(sessions=same)), table(row(1.1, sessions=same))) is CellOutcome.SLOWER
    assert outcome(table(row(0.0)), table(row(0.0))) is CellOutcome.SAME


def test_a_spread_that_hides_the_change_is_said() -> None:
    wild = (0.5, 1.5, 1.0, 0.7, 1.3, 1.0)
    (verdict,) = cell_verdicts(table(row(sessions=wild)), table(row(1.05, sessions=wild)))
    assert verdict.outcome is CellOutcome.UNSURE
    assert not verdict.bad
    assert str(verdict).startswith("m.onnx on rpi4-1: too much spread to tell (+5.0%, -")


def test_a_disturbed_board_is_judged_by_its_fastest_results() -> None:
    """Each session of the second run has one result that nothing disturbed."""
    loaded = Measured(CELL, tuple((0.01 * each, 0.02, 0.03) for each in QUIET), doubtful=6, warnings=("busy",))
    assert outcome(table(row()), table(loaded)) is CellOutcome.SAME
    slower = Measured(CELL, tuple((0.0105 * each, 0.02, 0.03) for each in QUIET), doubtful=6, warnings=("busy",))
    (verdict,) = cell_verdicts(table(row()), table(slower))
    assert verdict.outcome is CellOutcome.SLOWER
    assert str(verdict).endswith("its board was disturbed in 6 of 6 sessions: busy")


def test_a_board_that_is_slower_itself_takes_the_blame() -> None:
    base = table(row())
    (verdict,) = cell_verdicts(base, table(row(1.05), pace=1.05e-6))
    assert verdict.outcome is CellOutcome.BOARD
    assert not verdict.bad
    assert "a call that does nothing takes 5.0%" in str(verdict)
    (verdict,) = cell_verdicts(base, table(row(1.20), pace=1.05e-6))
    assert verdict.outcome is CellOutcome.SLOWER
    assert "more than its board" in str(verdict)


def test_another_python_there_says_nothing_of_the_board() -> None:
    assert outcome(table(row()), table(row(1.05), pace=1.05e-6, python="3.12")) is CellOutcome.SLOWER


def test_errors_and_what_cannot_be_compared() -> None:
    broken, lost = Measured(CELL, error="no such operator", broken=True), Measured(CELL, error="the board is gone")
    (verdict,) = cell_verdicts(table(row()), table(broken))
    assert (verdict.outcome, verdict.bad, str(verdict)) == (
        CellOutcome.BROKEN, True, "m.onnx on rpi4-1: no longer runs (no such operator)",
    )  # fmt: skip
    assert outcome(table(row()), table(lost)) is CellOutcome.UNKNOWN
    assert outcome(table(lost), table(row())) is CellOutcome.UNKNOWN
    assert outcome(table(broken), table(broken)) is CellOutcome.UNKNOWN
    assert outcome(table(row(sessions=(1.0, 1.0))), table(row())) is CellOutcome.UNKNOWN
    assert cell_verdicts(table(row()), table(row(cell=CELL._replace(model="new.onnx")))) == []
    (verdict,) = cell_verdicts(table(row()), table(row(cell=CELL._replace(board="rpi4-2"))))
    assert verdict.outcome is CellOutcome.UNKNOWN
    assert "it was measured on rpi4-1, and boards differ" in str(verdict)


def test_a_suspicious_cell_is_measured_again_and_the_new_sessions_decide() -> None:
    other = CELL._replace(threads=2)
    base, now = table(row(), row(cell=other)), table(row(1.05), row(cell=other))
    asked: list[Collection[Cell]] = []

    def again(factor: float):
        def measure(cells: Collection[Cell]) -> BenchTable:
            asked.append(cells)
            return table(row(factor))

        return measure

    first, second = confirmed(base, now, again(1.04))
    assert (first.outcome, second.outcome) == (CellOutcome.SLOWER, CellOutcome.SAME)
    assert first.shift is not None
    assert first.shift.ratio == pytest.approx(0.04)
    first, _ = confirmed(base, now, again(1.0))
    assert first.outcome is CellOutcome.SAME
    assert first.why.startswith("slower by 5.0%")
    assert "and not when it was measured again" in first.why
    assert asked == [[CELL], [CELL]]
    (gone, _) = confirmed(base, now, lambda cells: table())
    assert gone.outcome is CellOutcome.UNKNOWN


def simulated(rng: random.Random, cells: int, factor: float = 1.0, load: float = 0.0) -> BenchTable:
    """Six sessions of ten results: 2 % between sessions, 1 % within; a ``load`` doubles some results."""
    rows = []
    for number in range(cells):
        blocks = []
        for _ in range(6):
            session = 0.01 * factor * rng.lognormvariate(0, 0.02)
            blocks.append(tuple(session * rng.lognormvariate(0, 0.01) * (1 + (rng.random() < load)) for _ in range(10)))
        doubtful = 6 if load else 0
        rows.append(Measured(CELL._replace(threads=number), tuple(blocks), doubtful=doubtful))
    return BenchTable(tuple(rows))


@pytest.mark.parametrize("load", [0.0, 0.4])
def test_an_unchanged_lab_is_hardly_ever_called_slower(load: float) -> None:
    """Runs of 10 cells against each other; docs/bench.md has more of them."""
    rng = random.Random(21)
    called = 0
    for _ in range(80):
        base, now = simulated(rng, 10), simulated(rng, 10, load=load)
        called += any(verdict.bad for verdict in confirmed(base, now, lambda cells: simulated(rng, 10, load=load)))
    assert called <= 2


@pytest.mark.parametrize("load", [0.0, 0.4])
def test_a_slower_model_is_found(load: float) -> None:
    rng = random.Random(22)
    found = 0
    for _ in range(50):
        base, now = simulated(rng, 1), simulated(rng, 1, 1.1, load)
        (verdict,) = confirmed(base, now, lambda cells: simulated(rng, 1, 1.1, load))
        found += verdict.outcome is CellOutcome.SLOWER
        assert verdict.outcome is not CellOutcome.FASTER
    assert found >= 45
