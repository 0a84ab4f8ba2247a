"""Texts of control messages that are cut, not refused."""

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.wire.checks import MAX_TEXT
from rpcsys.wire.kept_texts import MAX_NAMES, brief, left


def test_a_long_text_is_cut_and_made_printable():
    assert brief("a" * 1000, "why") == "a" * MAX_TEXT
    assert brief("one\ntwo", "why") == "one?two"
    with pytest.raises(ProtocolError):
        brief(7, "why")


def test_what_is_left_is_a_count_or_names():
    assert left(3, "cleaned") == 3
    assert left(["a"] * 100, "cleaned") == ["a"] * MAX_NAMES
    for wrong in (-1, "a", [7]):
        with pytest.raises(ProtocolError):
            left(wrong, "cleaned")
