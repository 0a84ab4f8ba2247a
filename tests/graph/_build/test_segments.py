"""Which stages of a board are one call."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.graph._build.segments import segments

LINE = {"a": [], "b": ["a"], "c": ["b"], "d": ["c"]}


def test_neighbours_on_one_board_are_one_segment() -> None:
    assert segments(LINE, {"b": 1, "c": 1}) == [["a"], ["b", "c"], ["d"]]
    assert segments(LINE, dict.fromkeys(LINE, 1)) == [["a", "b", "c", "d"]]
    assert segments(LINE, {"a": 1, "b": 1, "c": 2, "d": 2}) == [["a", "b"], ["c", "d"]]


def test_stages_without_a_board_are_not_joined() -> None:
    assert segments(LINE, {}) == [["a"], ["b"], ["c"], ["d"]]


def test_a_stage_elsewhere_between_makes_two_segments() -> None:
    assert segments(LINE, {"a": 1, "c": 1, "d": 1}) == [["a"], ["b"], ["c", "d"]]


def test_a_stage_beside_is_no_stage_between() -> None:
    needs = {"a": [], "beside": ["a"], "b": ["a"], "end": ["b", "beside"]}
    assert segments(needs, {"a": 1, "b": 1}) == [["a", "b"], ["beside"], ["end"]]
    assert segments(needs, {"a": 1, "b": 1, "end": 1}) == [["a", "b"], ["beside"], ["end"]]


def test_a_segment_runs_behind_what_all_of_its_stages_need() -> None:
    needs = {"a": [], "first": [], "b": ["a", "first"]}
    assert segments(needs, {"a": 1, "b": 1}) == [["first"], ["a", "b"]]


def test_two_boards_do_not_wait_for_each_other_in_a_circle() -> None:
    needs = {"a": [], "b": [], "c": ["b"], "d": ["a"]}
    assert segments(needs, {"a": 1, "c": 1, "b": 2, "d": 2}) == [["b"], ["a", "c"], ["d"]]


@st.composite
def flows(draw: st.DrawFn) -> tuple[dict[str, list[str]], dict[str, int]]:
    names = [f"s{number}" for number in range(draw(st.integers(1, 7)))]
    needs = {
        name: draw(st.lists(st.sampled_from(names[:number]), unique=True)) if number else []
        for number, name in enumerate(names)
    }
    return needs, draw(st.dictionaries(st.sampled_from(names), st.integers(1, 2)))


@given(flows())
def test_segments_hold_every_stage_once_in_an_order_that_can_run(
    flow: tuple[dict[str, list[str]], dict[str, int]],
) -> None:
    needs, boards = flow
    found = segments(needs, boards)
    assert sorted(itertools.chain(*found)) == sorted(needs)
    done: set[str] = set()
    for segment in found:
        assert len({boards.get(name, name) for name in segment}) == 1
        for name in segment:
            assert done | set(segment) >= set(needs[name])
        done |= set(segment)
