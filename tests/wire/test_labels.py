"""What a request can say about a label, and that detected labels fit beside the keeper's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import UsageError
from rpcsys.server import capabilities
from rpcsys.wire.labels import MAX_GIVEN, MAX_LABELS, VERSIONS, of_request, operator_of, shown


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
    assert most == MAX_GIVEN + 17
    assert most <= MAX_LABELS


@pytest.mark.parametrize("labels", [None, {}, {"arch": "aarch64", "cores": ">=4", "a b": ""}])
def test_the_labels_of_a_request(labels):
    copied = of_request(labels)
    assert copied == (labels or {})
    assert copied is not labels


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["arch"], "labels is a list of 1, and no dict: write labels={'arch': 'aarch64', 'cores': '>=4'}"),
        ("arch=x", "labels is 'arch=x', and no dict: write labels={'arch': 'aarch64', 'cores': '>=4'}"),
        ({"cores": 2}, "labels: the value of 'cores' is 2, and no text: write labels={'cores': '2'}"),
        ({"a": "b", "f": 2.5}, "labels: the value of 'f' is 2.5, and no text: write labels={'f': '2.5'}"),
        ({"a": None}, "labels: the value of 'a' is None, and no text: write at most 256 printable characters"),
        ({"a": ["b"]}, "labels: the value of 'a' is a list of 1, and no text: write at most 256 printable characters"),
        ({"a": "x\n"}, "labels: the value of 'a' is 'x\\n', and no text: write at most 256 printable characters"),
        ({2: "b"}, "labels: 2 is no name of a label: write labels={'arch': 'aarch64', 'cores': '>=4'}"),
    ],
)
def test_a_wrong_label_is_one_line(labels, words):
    with pytest.raises(UsageError) as refused:
        of_request(labels)
    assert str(refused.value) == words


@given(
    st.dictionaries(st.text() | st.integers(), st.text() | st.integers() | st.none()) | st.text() | st.lists(st.text())
)
def test_any_labels_are_kept_or_refused_in_one_line(labels):
    said = ""
    try:
        assert of_request(labels) == dict(labels)
    except UsageError as refused:
        said = str(refused)
    assert said.isprintable()
