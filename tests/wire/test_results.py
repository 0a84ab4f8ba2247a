"""Messages about results: what is well-formed, and that the largest ones fit a frame."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.wire import membership, results
from rpcsys.wire.control import Answer
from rpcsys.wire.results import MAX_RESULTS, MAX_TIMES, FindResults, KeepResults
from rpcsys.wire.tracker import BadMessage, decode_json, encode, parse_to_tracker

ONE, LONGEST = "0" * 64, 1.2345678901234567e-105
identities = st.text("0123456789abcdef", min_size=64, max_size=64)
times = st.lists(st.floats(0, 1e9, exclude_min=True), min_size=1, max_size=5)
MESSAGES = st.builds(
    FindResults, st.integers(0, 2**53), st.lists(identities, min_size=1, max_size=3).map(tuple)
) | st.builds(KeepResults, st.integers(0, 2**53), st.dictionaries(identities, times, max_size=3))


@given(MESSAGES)
def test_a_message_survives_the_wire(message) -> None:
    assert parse_to_tracker(decode_json(encode(message)[4:]), membership.TO_TRACKER) == message


@pytest.mark.parametrize("message", [FindResults(1, (ONE,)), KeepResults(1, {ONE: [1.0]})], ids=repr)
def test_a_board_does_not_know_them(message) -> None:
    with pytest.raises(BadMessage, match="unknown op"):
        parse_to_tracker(message.to_json())


def test_the_largest_fit_a_frame() -> None:
    names = tuple(f"{number:064x}" for number in range(MAX_RESULTS))
    most = {name: [LONGEST] * MAX_TIMES for name in names}
    for message in (FindResults(2**53, names), KeepResults(2**53, most), Answer(2**53, True, fields={"found": most})):
        decode_json(encode(message)[4:])


@pytest.mark.parametrize(
    "value", [None, [], [ONE] * (MAX_RESULTS + 1), [ONE[1:]], ["G" * 64], [7], ONE, {ONE: 1}, [ONE.encode()]], ids=str
)
def test_other_identities_are_refused(value) -> None:
    with pytest.raises(ProtocolError, match="identities"):
        FindResults.from_json({"op": "find_results", "id": 1, "identities": value})


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], ONE, {"x": [1.0]}, {ONE: 1.0}, {ONE: []}, {ONE: [1.0] * (MAX_TIMES + 1)}, {ONE: [0]}, {ONE: ["1"]}),
        *({ONE: [bad]} for bad in (-1.0, math.nan, math.inf, 1e12, True, None, 10**300)),
        {f"{number:064x}": [1.0] for number in range(MAX_RESULTS + 1)},
    ],
    ids=lambda value: str(value)[:60],
)
def test_other_results_are_refused(value) -> None:
    with pytest.raises(ProtocolError):
        KeepResults.from_json({"op": "keep_results", "id": 1, "results": value})
    with pytest.raises(ProtocolError):
        results.found(value, "found")


@given(st.lists(st.floats() | st.integers(-3, 3), max_size=4))
def test_what_can_be_kept_is_what_a_tracker_takes(seconds) -> None:
    try:
        taken = results.times(seconds, "seconds") == seconds
    except ProtocolError:
        taken = False
    assert results.can_be_kept(seconds) == taken
