"""Checks of fields: each keeps an allowed value, and refuses others with one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.wire import checks
from rpcsys.wire.checks import Message, field

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=8,
)
EVERY = {
    "integer": checks.integer(1, 9),
    "number": checks.number,
    "seconds": checks.seconds,
    "text": checks.text,
    "sentence": checks.sentence,
    "flag": checks.flag,
    "key": checks.key,
    "match key": checks.match_key,
    "port": checks.port,
    "place": checks.place(checks.text),
    "optional": checks.optional(checks.text),
    "items": checks.items(checks.text),
    "rows": checks.rows(checks.number),
    "mapping": checks.mapping(checks.text),
    "table": checks.table(checks.number),
    "record": checks.record(name=checks.text),
    "partial": checks.partial(name=checks.text),
}


class Inner(Message):
    name: str = field(checks.text)


class Outer(Message, op="outer"):
    inner: tuple[Inner, ...] = field(checks.items(Inner.from_json), default=tuple)
    count: int = field(checks.integer(0, 9), default=3)


@pytest.mark.parametrize("check", EVERY.values(), ids=EVERY)
@given(value=ANY_JSON)
def test_any_value_is_kept_or_refused_with_a_short_error(check, value):
    problem = "a field"
    try:
        kept = check(value, "a field")
    except ProtocolError as error:
        problem = str(error)
    else:
        assert check(kept, "a field") == kept
    assert problem.startswith(("a field", "name"))
    assert len(problem) < 250


@pytest.mark.parametrize(
    ("check", "value", "kept"),
    [
        (checks.port, "9090", 9090),
        (checks.seconds, 10**12, checks.MAX_SECONDS),
        (checks.place(checks.text), ["host", "1"], ("host", 1)),
        (checks.items(checks.flag), [True], (True,)),
        (checks.rows(checks.flag), [True], [True]),
        (checks.optional(checks.text), None, None),
        (checks.record(a=checks.port), {"a": "1", "b": 2}, {"a": 1, "b": 2}),
        (checks.partial(a=checks.port), {"b": 2}, {"b": 2}),
    ],
)
def test_an_allowed_value_is_kept(check, value, kept):
    assert check(value, "x") == kept


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (checks.number, True),
        (checks.number, float("nan")),
        (checks.seconds, -1),
        (checks.text, "x" * (checks.MAX_TEXT + 1)),
        (checks.text, "\x1b"),
        (checks.port, "65536"),
        (checks.items(checks.flag), [True] * (checks.MAX_ITEMS + 1)),
        (checks.mapping(checks.flag, 1), {"a": True, "b": True}),
        (checks.table(checks.flag), {1: True}),
        (checks.record(a=checks.flag), {}),
    ],
)
def test_a_wrong_value_is_refused(check, value):
    with pytest.raises(ProtocolError):
        check(value, "x")


def test_a_message_survives_json():
    message = Outer((Inner("a"), Inner("b")), 4)
    plain = {"op": "outer", "inner": [{"name": "a"}, {"name": "b"}], "count": 4}
    assert message.to_json() == plain
    assert Outer.from_json({**plain, "newer": 1}) == message
    assert Outer.from_json({}) == Outer()


def test_a_missing_required_field_is_refused():
    with pytest.raises(ProtocolError, match="message lacks 'name'"):
        Inner.from_json({})
    with pytest.raises(ProtocolError, match="count must be"):
        Outer.from_json({"count": 10})


def test_a_message_is_immutable():
    with pytest.raises(AttributeError):
        Inner("a").name = "b"
