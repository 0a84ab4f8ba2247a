"""The trace context of a call: functions see that of their own call, and nothing that is none."""

from __future__ import annotations

import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpcsys.server import traceparent
from rpcsys.server.session.trace_context import within
from tests.server.session.test_calls import Table, sent

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def table() -> Table:
    made = Table()
    made.functions["which"] = traceparent
    made.functions["fails"] = lambda: 1 / 0
    return made


def answered(table: Table, **fields: object) -> object:
    return table.bound(sent(fields)).run()[0]


def test_a_function_sees_the_context_of_its_call_alone(table: Table) -> None:
    assert answered(table, f="which", a=[], trace=TRACE) == TRACE
    assert answered(table, f="which", a=[]) == ""
    with pytest.raises(ZeroDivisionError):
        answered(table, f="fails", a=[], trace=TRACE)
    assert traceparent() == ""


def test_each_thread_has_its_own() -> None:
    seen: list[str] = []

    def other() -> None:
        thread = threading.Thread(target=lambda: seen.append(traceparent()))
        thread.start()
        thread.join()
        seen.append(traceparent())

    within(TRACE, other)()
    assert seen == ["", TRACE]


@given(
    st.none() | st.integers() | st.lists(st.text()) | st.text() | st.text("0123456789abcdef-", min_size=55, max_size=55)
)
@example(TRACE + "\n")
@example(TRACE.upper())
@example("0" * 100_000)
def test_what_is_no_context_is_ignored(value: object) -> None:
    assert within(value, len) is len
