"""Tokens and invitations: their forms, and what is refused."""

import json
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ConfigError, UsageError
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind

PINS = ("sha256:" + "1f" * 32, "sha256:" + "2e" * 32)
INVITATION = tokens.invitation(["lab-host:9190", "[fd00::1]:9190"], PINS)


@pytest.mark.parametrize("kind", list(HolderKind))
def test_a_token_is_read_back(kind):
    made = tokens.new(kind)
    assert tokens.parse(made.text) == made
    assert made.text.startswith(f"rpcsys_{kind.value}_{made.id}_")
    assert made.hash == tokens.hash_of(made.secret) == tokens.parse(made.text).hash
    assert len(made.secret) == 43


def test_a_token_is_found_in_a_text():
    made = tokens.new(HolderKind.PERSON)
    for text in (made.text, f"/page?token={made.text}&x=y", f"a {made.text} rpcsys_p_"):
        assert tokens.occurs(text)
        assert tokens.first(text) == made
    assert tokens.occurs("/page?token=rpcsys_x_abc")
    assert not tokens.occurs("/page?token=rpcsys_server_info")
    with pytest.raises(ConfigError, match="this is no token"):
        tokens.first("/page?token=rpcsys_x_abc")


def test_a_secret_among_a_commands_arguments_is_refused_without_its_text():
    tokens.refuse_visible(["--key", "rpi4", "rpcsys_p_abc", "/home/rpcsys_b_board_1/lab.json"])
    for secret in (tokens.new(HolderKind.BOARD).text, INVITATION.text):
        for argument in (secret, f"--lab={secret}", f"http://lab-host/?token={secret}"):
            with pytest.raises(UsageError, match="visible to everybody") as caught:
                tokens.refuse_visible(["--tracker", argument])
            assert secret not in str(caught.value)


def test_each_token_is_another():
    made = [tokens.new(HolderKind.PERSON) for _ in range(100)]
    assert len({token.id for token in made}) == len({token.secret for token in made}) == 100


@pytest.mark.parametrize(
    "change", [str.upper, lambda text: text[:-1], lambda text: text + "A", lambda text: text + "\n"]
)
def test_what_is_no_token_is_refused_without_being_repeated(change):
    text = change(tokens.new(HolderKind.BOARD).text)
    with pytest.raises(ConfigError) as caught:
        tokens.parse(text)
    assert text[20:] not in str(caught.value)


@given(st.text(max_size=80))
def test_any_text_is_no_token(text):
    with pytest.raises(ConfigError):
        tokens.parse(text)


def test_an_invitation_is_one_line_and_read_back():
    assert "\n" not in INVITATION.text
    assert tokens.parse_invitation(INVITATION.text) == INVITATION


@given(st.data())
def test_a_broken_line_is_read(data):
    text = INVITATION.text
    for place in data.draw(st.lists(st.integers(0, len(text)), max_size=5)):
        text = text[:place] + data.draw(st.sampled_from(["\n", "\r\n", " ", "\n  "])) + text[place:]
    assert tokens.parse_invitation(f" {text}\n") == INVITATION


@given(st.integers(len("rpcsys-invitation:"), len(INVITATION.text) - 1))
def test_an_invitation_that_is_cut_short_is_refused(length):
    with pytest.raises(ConfigError, match="to the last character"):
        tokens.parse_invitation(INVITATION.text[:length])


@pytest.mark.parametrize("text", ["", "rpcsys-invitation", f"rpcsys_p_aaaaaaaa_{'A' * 43}"])
def test_what_is_no_invitation_is_told_what_one_is(text):
    with pytest.raises(ConfigError, match="one begins with rpcsys-invitation:"):
        tokens.parse_invitation(text)


@pytest.mark.parametrize(
    "change",
    [
        {"a": []}, {"a": "lab-host:9190"}, {"a": ["a\n:1"]}, {"a": ["x:1"] * 33}, {"a": [1]}, {"a": [""]},
        {"p": []}, {"p": [PINS[0]] * 3}, {"p": ["1f" * 32]}, {"p": None},
        {"i": 1}, {"i": "short"}, {"s": INVITATION.secret + "A"}, {"s": None},
    ],
)  # fmt: skip
def test_fields_of_another_form_are_refused(change):
    fields = {"a": ["lab-host:9190"], "p": list(PINS), "i": INVITATION.id, "s": INVITATION.secret, **change}
    with pytest.raises(ConfigError, match="not whole"):
        tokens.parse_invitation("rpcsys-invitation:" + urlsafe_b64encode(json.dumps(fields).encode()).decode())


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_json_is_refused(value):
    with pytest.raises(ConfigError):
        tokens.parse_invitation("rpcsys-invitation:" + urlsafe_b64encode(json.dumps(value).encode()).decode())


def test_a_long_text_is_not_decoded():
    with pytest.raises(ConfigError):
        tokens.parse_invitation("rpcsys-invitation:" + "A" * 100_000)
