"""The order of waiting calls."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.gateway.batching import call_template
from rpcsys.gateway.calls import InferenceCall, form_of
from rpcsys.gateway.turns import CallTurns


def call(client: object = 0, priority: int = 0, rows: int = 1, width: int = 1) -> InferenceCall:
    inputs = [("uint8", (rows, width))]
    form = form_of(call_template(0, inputs), inputs)
    return InferenceCall(form, (bytes(rows * width),), lambda outcome: None, client, priority)


def drained(turns: CallTurns) -> list[InferenceCall]:
    found = []
    while len(turns):
        found.append(turns.first())
        turns.take(found[-1])
    return found


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_priority_then_turns_then_age(about: list[tuple[int, int]]) -> None:
    turns = CallTurns()
    calls = [call(client, priority) for client, priority in about]
    for each in calls:
        turns.add(each)
    assert len(turns) == len(calls)
    foreseen = list(turns)
    found = drained(turns)
    assert found == foreseen
    levels = [each.priority or 99 for each in found]
    assert levels == sorted(levels)
    for level in set(levels):
        served = [each for each in found if (each.priority or 99) == level]
        by_client: dict[object, list[InferenceCall]] = defaultdict(list)
        for each in served:
            by_client[each.client].append(each)
        for client, own in by_client.items():  # the order of one client is that of its calls
            assert own == [each for each in calls if each.client == client and (each.priority or 99) == level]
        left = {client: len(own) for client, own in by_client.items()}
        for at, each in enumerate(served):  # nobody is served twice while another waits for the same time
            later = {other.client for other in served[at + 1 : at + len(left)]}
            left[each.client] -= 1
            assert {client for client, count in left.items() if count and client != each.client} <= later


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=20), st.data())
def test_calls_that_finish_are_removed(about: list[tuple[int, int]], data: st.DataObject) -> None:
    turns = CallTurns()
    calls = [call(client, priority) for client, priority in about]
    for each in calls:
        turns.add(each)
    gone = data.draw(st.sets(st.sampled_from(calls))) if calls else set()
    for each in gone:
        turns.remove(each)
    found = drained(turns)
    assert set(found) == set(calls) - gone
    assert not turns._levels
    assert not turns._order


def test_calls_that_were_under_way_are_first() -> None:
    turns = CallTurns()
    first, second, third = call(priority=1), call(), call()
    turns.add(first)
    for each in (third, second):
        each.returned = True
        turns.again(each)
    assert drained(turns) == [second, third, first]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(1, 2)), min_size=1, max_size=20),
    st.integers(1, 12),
    st.integers(1, 30),
)
def test_gathered_calls_fit(about: list[tuple[int, int, int]], rows: int, size: int) -> None:
    turns = CallTurns()
    for client, own, width in about:
        turns.add(call(client, 0, own, width))
    others = turns.first().form.others
    assert others is not None
    found = turns.gather(others, rows, size)
    assert len(turns) == len(about)
    assert {each.form.others for each in found} <= {others}
    assert sum(each.form.rows for each in found) <= rows
    assert sum(each.form.template.body_bytes for each in found) <= size
    kept = [each for each in turns if each in found]
    assert found == kept
