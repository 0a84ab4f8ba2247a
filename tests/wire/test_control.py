"""The fields of control messages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.wire import control
from rpcsys.wire.labels import MAX_WANTED

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=5), inside, max_size=4),
    max_leaves=12,
)
ENDED = {"op": "lease_ended", "id": 1, "lease": "x", "epoch": 1, "outcome": "closed"}


@given(ANY_JSON, ANY_JSON)
def test_leftovers_and_fault_of_a_lease_are_checked_and_cut(cleaned, fault) -> None:
    try:
        ended = control.LeaseEnded.from_json({**ENDED, "cleaned": cleaned, "fault": fault})
    except ProtocolError:
        return
    assert len(ended.cleaned) <= control.MAX_CLEANED
    assert len(ended.fault) <= 256
    for kept in ended.cleaned.values():
        assert type(kept) is int or all(type(name) is str and name.isprintable() for name in kept)


def test_long_leftovers_and_faults_are_cut_and_not_refused() -> None:
    """A message of a server with much to report still ends its lease."""
    cleaned = {"processes": ["x" * 10_000 + "\n"] * 1000, "removed": ["a\x1b[2J"], "files": 7}
    ended = control.LeaseEnded.from_json({**ENDED, "cleaned": cleaned, "fault": "y\n" * 100_000})
    assert len(json.dumps(ended.to_json())) < 40_000
    assert ended.cleaned["removed"] == ["a?[2J"]
    assert ended.cleaned["files"] == 7


@pytest.mark.parametrize(
    "cleaned", [{"a": {"b": 1}}, {"a": "x" * 1000}, {"a": [[]]}, {"a": 1e9}, {str(n): 1 for n in range(9)}, []]
)
def test_other_leftovers_are_refused(cleaned) -> None:
    with pytest.raises(ProtocolError, match="must be"):
        control.LeaseEnded.from_json({**ENDED, "cleaned": cleaned})


def test_a_request_with_too_many_labels_is_refused() -> None:
    wanted = {f"l{number}": "x" for number in range(MAX_WANTED + 1)}
    with pytest.raises(ProtocolError, match=f"labels must be an object of at most {MAX_WANTED} entries"):
        control.Request.from_json({"op": "request", "id": 1, "labels": wanted})


@pytest.mark.parametrize(
    "more", [{"what": "all"}, {"secret": "5c" * 15}, {"secret": 5}, {"modules": "head"}, {"until_s": -1}]
)
def test_an_admission_of_another_form_is_refused_without_its_secret(more):
    use = {"what": "serve", "modules": ["head"], "member": "ann", "secret": "5c" * 16, "until_s": 600}
    assert control.Admit.from_json({"id": 1, **use}).secret == "5c" * 16
    with pytest.raises(ProtocolError) as caught:
        control.Admit.from_json({"id": 1, **use, **more})
    assert "5c5c" not in str(caught.value)


@pytest.mark.parametrize("pin", ["1f", "1F" * 32, "1f" * 33, None])
def test_a_pin_of_another_form_is_refused(pin):
    card = {"id": 1, "key": "rpi4", "name": "board"}
    assert control.Register.from_json({**card, "pin": "1f" * 32}).pin == "1f" * 32
    with pytest.raises(ProtocolError, match="pin must be 64 hexadecimal digits"):
        control.Register.from_json({**card, "pin": pin})
