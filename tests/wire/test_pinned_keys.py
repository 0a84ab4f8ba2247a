"""Pinned match keys: their parts, their public names, and what is shown of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.wire import keys, pinned_keys

PIN = "1f2e" + "0" * 60


def test_a_pinned_match_key_has_a_name_that_anyone_may_know():
    made = pinned_keys.new("127.0.0.1:5555", PIN)
    assert made.text == f"127.0.0.1:5555:t1-{PIN}-{made.secret}"
    assert len(bytes.fromhex(made.secret)) == 16
    assert keys.is_match_key(made.text)
    assert pinned_keys.parse(made.text) == made
    assert pinned_keys.parse(made.name) == made._replace(secret="")
    assert made.secret not in made.name
    assert keys.split_match_key(made.text)[0] == "127.0.0.1:5555"


def test_a_pinned_match_key_of_the_longest_key_is_a_match_key():
    assert keys.is_match_key(pinned_keys.new("a" * keys.MAX_KEY, PIN).text)


@pytest.mark.parametrize(
    "text",
    [
        *("rpi4:0.123", "rpi4", f":t1-{PIN}", f"rpi4:t1-{PIN[:-1]}", f"rpi4:t1-{PIN}-", f"rpi4:t1-{PIN}-{'0' * 31}"),
        *(f"rpi4:t2-{PIN}", f"rpi4:t1-{PIN.upper()}", f"rpi4:t1-{PIN}-{'0' * 32}\n", f"rpi4:t1-{PIN}-{'0' * 33}"),
    ],
)
def test_other_match_keys_have_no_pin(text):
    assert pinned_keys.parse(text) is None


@given(st.text(max_size=200))
def test_any_text_has_parts_that_make_it_or_none(text):
    parts = pinned_keys.parse(text)
    assert parts is None or parts.text == text


@given(st.text(min_size=1, max_size=20).filter(keys.is_key))
def test_the_parts_of_a_pinned_match_key_make_it(key):
    made = pinned_keys.new(key, PIN)
    assert pinned_keys.parse(made.text) == made


def test_what_is_shown_of_a_match_key_opens_no_session():
    made = pinned_keys.new("rpi4", PIN)
    assert pinned_keys.shown(made.text) == pinned_keys.shown(made.name) == "rpi4:t1-1f2e…"
    assert pinned_keys.shown(keys.new_match_key("rpi4")) == "rpi4:…"
    assert pinned_keys.shown("rpi4") == "rpi4"


def test_a_match_key_that_was_pasted_twice_is_shown_without_its_secret() -> None:
    key = "lab:5:rpi4:t1-" + "1f" * 32 + "-" + "5c" * 16
    for text in (key, key * 2, f"{key}:more", f"{key} "):
        assert pinned_keys.shown(text) == "lab:5:rpi4:t1-1f1f…"


def test_what_is_a_pin() -> None:
    assert pinned_keys.is_pin("0" * 64)
    for text in ("0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n", b"0" * 64, None):
        assert not pinned_keys.is_pin(text)


def test_what_is_a_secret() -> None:
    assert pinned_keys.is_secret("0" * 32)
    for text in ("0" * 31, "0" * 33, "G" * 32, "0" * 32 + "\n", b"0" * 32, None):
        assert not pinned_keys.is_secret(text)
