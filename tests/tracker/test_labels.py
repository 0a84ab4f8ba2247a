"""The facts of devices, and the wants of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker.labels import facts_of, facts_of_key, wants_of, wants_of_key

NAMES = st.sampled_from(["cores", "rev", "site"])
NUMBERS = st.integers(-3, 9)


@given(st.dictionaries(NAMES, NUMBERS), st.dictionaries(NAMES, NUMBERS), st.dictionaries(NAMES, NUMBERS))
def test_a_device_fits_if_every_label_does(has, exact, least):
    labels = {**{name: f">={number}" for name, number in least.items()}, **{n: str(v) for n, v in exact.items()}}
    least = {name: number for name, number in least.items() if name not in exact}
    wants = wants_of("rpi4", labels)
    facts = facts_of("rpi4", "board", {name: str(number) for name, number in has.items()}, ())
    fits = all(has.get(name) == number for name, number in exact.items())
    fits &= all(name in has and has[name] >= number for name, number in least.items())
    assert wants.fit(facts) == fits
    assert wants_of("rpi4", wants.labels) == wants


def test_labels_that_the_tracker_sets_cannot_be_set_by_a_server():
    facts = facts_of("rpi4", "board", {"key": "gpu", "server": "other", "site": "x"}, ("so", "onnx"))
    assert wants_of("rpi4", {"server": "board", "loads": "onnx", "site": "x"}).fit(facts)
    assert wants_of("", {"loads": "so"}).fit(facts)
    assert not wants_of("gpu", {}).fit(facts)
    assert not wants_of("", {"server": "other"}).fit(facts)


def test_a_key_alone_fits_any_device_of_the_key():
    assert wants_of("rpi4", {}) is wants_of_key("rpi4")
    assert wants_of_key("rpi4").bare
    assert wants_of_key("rpi4").fit(facts_of_key("rpi4"))
    assert not wants_of("rpi4", {"site": "x"}).bare


@pytest.mark.parametrize(("key", "labels"), [("", {}), ("", {"cores": ">=4"}), ("rpi4", {"cores": ">=many"})])
def test_invalid_wants_are_refused(key, labels):
    with pytest.raises(ValueError, match="label"):
        wants_of(key, labels)


def test_wants_as_text():
    assert str(wants_of("rpi4", {"site": "x", "cores": ">=4"})) == "'rpi4' with cores=>=4, site=x"
    assert str(wants_of("", {"site": "x"})) == "any device with site=x"
