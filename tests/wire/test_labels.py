"""What a request can say about a label, and that detected labels fit beside the keeper's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.server import capabilities
from rpcsys.wire.labels import MAX_GIVEN, MAX_LABELS, VERSIONS, operator_of, shown


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (">=1.22", (">=", "1.22")),
        ("> 1.22 ", (">", "1.22")),
        ("<=2", ("<=", "2")),
        ("<2", ("<", "2")),
        ("==1", ("==", "1")),
        ("=1", ("=", "1")),
        ("!=a b", ("!=", "a b")),
        ("1.22", ("", "1.22")),
        (" a ", ("", " a ")),
        ("!a", ("", "!a")),
        ("", ("", "")),
    ],
)
def test_an_operator_stands_before_the_value(text, parts):
    assert operator_of(text) == parts


@given(st.text(), st.text())
def test_wanted_labels_as_text_hold_both_parts(label, wanted):
    text = shown(label, wanted)
    assert text.startswith(label)
    assert text.endswith(wanted)
    assert len(text) == len(label) + len(wanted) + (not operator_of(wanted)[0])


def test_detected_labels_fit_beside_the_keepers():
    given_by_keeper = {f"l{number}": "x" for number in range(MAX_GIVEN)}
    found = capabilities.labels("board", given_by_keeper)
    most = len({*found, *VERSIONS})
    assert most == MAX_GIVEN + 13
    assert most <= MAX_LABELS
