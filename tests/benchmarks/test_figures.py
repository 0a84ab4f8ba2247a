"""The arithmetic of the benchmarks: medians, ratios, goals, and the table that shows them."""

import pytest

from benchmarks.figures import (
    MICROSECONDS,
    MILLISECONDS,
    PER_SECOND,
    Row,
    at_least,
    at_most,
    at_most_more,
    median,
    ours_at_most,
    percentile,
    rate,
    table,
    three_digits,
    within,
)


def row(ours=2.0, theirs=1.0, unit=MILLISECONDS, goal=None, **more):
    return Row(case="c", what="what", peer="raw", unit=unit, ours=ours, theirs=theirs, goal=goal, **more)


def test_median_of_odd_and_even_numbers_of_values():
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


@pytest.mark.parametrize("function", [median, lambda values: percentile(values, 99)])
def test_no_values_have_no_middle(function):
    with pytest.raises(ValueError, match="no value"):
        function([])


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)])
def test_percentile_is_the_nearest_rank(percent, expected):
    assert percentile(list(range(100, 0, -1)), percent) == expected


def test_percentile_of_one_value_is_that_value():
    assert percentile([7.0], 99) == 7.0


def test_ratio_of_times_is_ours_over_theirs():
    assert row(ours=3.0, theirs=2.0).ratio == 1.5


def test_ratio_of_rates_turns_the_times_around():
    slower = row(ours=2.0, theirs=1.0, unit=rate(10**9))
    assert slower.ratio == 0.5
    assert slower.to_json()["ours"] == 0.5


@pytest.mark.parametrize("missing", [{"ours": None}, {"theirs": None}])
def test_no_ratio_and_no_verdict_without_both_figures(missing):
    incomplete = row(**missing, goal=at_most(1.6))
    assert incomplete.ratio is None
    assert incomplete.passed is None


@pytest.mark.parametrize(
    ("goal", "passed"), [(at_most(2.0), True), (at_most(1.99), False), (at_least(2.0), True), (at_least(2.01), False)]
)
def test_a_goal_bounds_the_ratio_and_includes_its_bound(goal, passed):
    assert row(ours=2.0, theirs=1.0, goal=goal).passed is passed


def test_an_absolute_goal_is_in_the_unit_shown_and_needs_no_peer():
    assert row(ours=0.014, theirs=None, goal=ours_at_most(15)).passed is True
    assert row(ours=0.016, theirs=None, goal=ours_at_most(15)).passed is False


def test_without_a_goal_there_is_no_verdict():
    assert row().passed is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(9865.4, "9,865"), (129.4, "129"), (12.94, "12.9"), (1.2345, "1.23"), (0.0637, "0.0637"), (0, "0")],
)
def test_figures_are_shown_with_three_digits(value, text):
    assert three_digits(value) == text


@pytest.mark.parametrize(
    ("unit", "figure", "text"),
    [
        (MICROSECONDS, 12.9e-6, "12.9 us"),
        (MILLISECONDS, 0.097, "97.0 ms"),
        (PER_SECOND, 9865, "9,865 /s"),
        (rate(64 << 20), 0.016, "4.19 GB/s"),
    ],
)
def test_units_scale_figures_from_seconds(unit, figure, text):
    assert unit.text(figure) == text


def test_table_aligns_names_a_case_once_and_numbers_its_notes():
    lines = table(
        [
            row(ours=15e-6, theirs=12e-6, unit=MICROSECONDS, goal=at_most(1.6)),
            Row("c", "what", "tvm", MICROSECONDS, 15e-6, None, notes=("tvm: not installed",)),
            Row("d", "other", "tvm", MICROSECONDS, 30e-6, None, notes=("tvm: not installed",)),
            row(ours=30e-6, theirs=10e-6, unit=MICROSECONDS, goal=at_most(1.6)),
        ]
    ).splitlines()
    assert lines == [
        "measured     ours  peer           ratio  goal",
        "--------  -------  ----  -------  -----  -------  ------",
        "what      15.0 us  raw   12.0 us  1.25x  <= 1.6x  pass",
        "          15.0 us  tvm         -      -           [1]",
        "other     30.0 us  tvm         -      -           [1]",
        "what      30.0 us  raw   10.0 us  3.00x  <= 1.6x  MISSED",
        "[1] tvm: not installed",
    ]


@pytest.mark.parametrize(("ours", "passed"), [(0.89, False), (0.91, True), (1.0, True), (1.09, True), (1.11, False)])
def test_a_goal_around_the_peer_is_met_from_both_sides(ours, passed):
    assert row(ours=ours, goal=within(0.1)).passed is passed
    assert "1x +-10%" in table([row(ours=ours, goal=within(0.1))])


@pytest.mark.parametrize(("ours", "passed"), [(0.004, True), (0.0041, False), (0.0005, True)])
def test_a_goal_for_what_ours_has_more_is_in_the_unit_shown(ours, passed):
    bounded = row(ours=ours, theirs=0.001, goal=at_most_more(3))
    assert bounded.passed is passed
    assert "<= +3 ms" in table([bounded])


def test_nothing_has_no_ratio_to_nothing():
    assert row(ours=1.0, theirs=0.0).ratio is None
    assert row(ours=1.0, theirs=0.0, goal=at_most(2.0)).passed is None
