"""A board's last day as a strip."""

import math

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.views.day_strip import DAY_S, day_strip
from rpcsys.tracker.views.past import Past

NOW = 1_700_000_040.0  # a whole minute
HOUR = 3600.0
KINDS = ("joined", "gone", "set_aside", "trusted", "unhealthy", "healthy", "drained", "enabled", "slow")


def lease(since, ended):
    return {"since": NOW - since * HOUR, "ended": NOW - ended * HOUR}


def event(kind, ago):
    return HistoryEntry(NOW - ago * HOUR, kind, {})


def test_leases_of_the_day_are_merged_and_cut() -> None:
    past = Past(leases=[lease(2, 1), lease(5, 3), lease(4, 2.5), lease(30, 23), lease(50, 40)])
    strip = day_strip(NOW - 60, past, [(NOW - HOUR / 2, None)], out=False)
    assert strip["begin"] == NOW - DAY_S
    assert [x for x, _ in strip["leased"]] == [0.0, round(19 / 24, 5), round(22 / 24, 5), round(23.5 / 24, 5)]
    assert strip["leased_s"] == (1 + 2.5 + 1 + 0.5) * HOUR
    assert strip["out"] == []


def test_a_board_is_out_of_use_while_anything_is_wrong() -> None:
    events = [event("enabled", 2), event("healthy", 4), event("drained", 5), event("unhealthy", 6)]
    strip = day_strip(NOW - 60, Past(events=events), [], out=False)
    assert strip["out"] == [(round(18 / 24, 5), round(4 / 24, 5))]
    assert strip["out_s"] == 4 * HOUR


def test_what_began_before_the_first_event_and_what_goes_on() -> None:
    strip = day_strip(NOW - 60, Past(events=[event("gone", 1), event("enabled", 20)]), [], out=True)
    assert strip["out"] == [(0.0, round(4 / 24, 5)), (round(23 / 24, 5), round(1 / 24, 5))]


@given(
    st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60))),
    st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 60))),
    st.booleans(),
)
def test_spans_are_within_the_day_and_do_not_overlap(leases, events, out) -> None:
    past = Past([lease(*each) for each in leases], [event(*each) for each in sorted(events, key=lambda e: e[1])])
    strip = day_strip(NOW, past, [], out=out)
    for name in ("leased", "out"):
        ends = [x + width for x, width in strip[name]]
        assert all(0 <= x <= 1 for x, _ in strip[name])
        assert all(end <= 1 + 1e-3 for end in ends)
        begins = [x for x, _ in strip[name]]
        assert begins == sorted(begins)
        assert math.isfinite(strip[f"{name}_s"])
        assert 0 <= strip[f"{name}_s"] <= DAY_S
