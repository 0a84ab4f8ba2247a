"""Valid keys, new match keys and their parts, and the keys of a server's name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.wire import keys


@pytest.mark.parametrize("key", ["rpi4", "127.0.0.1:5555", "a" * keys.MAX_KEY, "größe", "a.b-c_d/e(1)"])
def test_a_key_may_hold_colons_and_most_else(key):
    assert keys.is_key(key)


@pytest.mark.parametrize(
    "key",
    [
        *("", "a b", "a,b", "a[0]", "]", "a\tb", "a\n", "a\x00", "a\x7f", "\ud800", "a" * (keys.MAX_KEY + 1)),
        *("a\x9b2J", "a\u200bb", "a\u202eb", "a\u2066", "\ufeffa", "a\U000e0041", "a\u2028b", "a\xa0b", "\ue000"),
        *(None, 3, ["rpi4"]),
    ],
)
def test_an_invalid_key_is_refused(key):
    assert not keys.is_key(key)


@given(st.text(st.characters(exclude_categories=["L", "N", "P", "S", "M"]), min_size=1).filter(lambda t: t.strip(" ")))
def test_a_key_has_no_invisible_characters(text):
    assert not keys.is_key("a" + text)
    assert not keys.is_match_key(f"a{text}:1")
    assert keys.served_keys(f"server:a{text}") == ()


def test_a_match_key_is_split_at_its_last_colon():
    assert keys.split_match_key("127.0.0.1:5555:0.123") == ("127.0.0.1:5555", "0.123")
    with pytest.raises(ProtocolError):
        keys.split_match_key("rpi4")


def test_our_match_keys_have_128_random_bits():
    made = {keys.new_match_key("127.0.0.1:5555") for _ in range(100)}
    assert len(made) == 100
    for match_key in made:
        key, random_part = keys.split_match_key(match_key)
        assert key == "127.0.0.1:5555"
        assert len(bytes.fromhex(random_part)) == 16
        assert keys.is_match_key(match_key)


def test_secrets_are_compared_whatever_characters_they_hold():
    assert keys.same("a:é\ud800", "a:é\ud800")
    assert not keys.same("a:1", "a:2")
    assert not keys.same("a", "")


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("server:rpi4", ("rpi4",)),
        ("server:127.0.0.1:5555", ("127.0.0.1:5555",)),
        ("server:proxy[rpi4,rpi3]", ("rpi4", "rpi3")),
        ("server:proxy[]", ()),
        ("server:proxy[rpi4", ()),
        ("server:a b", ()),
        ("server:", ()),
        ("client:rpi4", ()),
        ("", ()),
    ],
)
def test_served_keys_of_a_servers_name(name, served):
    assert keys.served_keys(name) == served


@given(st.text())
def test_any_name_serves_valid_keys_only(name):
    assert all(keys.is_key(key) for key in keys.served_keys("server:" + name))
