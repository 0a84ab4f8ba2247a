"""Messages about a lab's members: what is well-formed, and that no secret is shown in an error."""

from __future__ import annotations

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.wire import control, membership
from rpcsys.wire.tokens import HolderKind, hash_of
from rpcsys.wire.tracker import BadMessage, decode_json, encode, parse_to_tracker

DIGEST = hash_of("x")
EXAMPLES = [
    membership.WhoAmI(1),
    membership.ListMembers(1, "ann", 10),
    membership.Invite(1, "bo", HolderKind.BOARD, ("rpi4",), ("compiler",), 60.0),
    membership.Enrol(1, "rpi4-3", HolderKind.BOARD, DIGEST, ("rpi4",)),
    membership.Revoke(1, "bo"),
    membership.RenewToken(1, membership.EVERYONE),
    membership.ReplaceToken(1, DIGEST),
    membership.Rotate(1, "PEM", True),
    membership.SetOpen(1, False),
    membership.Audit(1, 5, 10),
]


def test_each_message_has_an_example() -> None:
    assert [type(example) for example in EXAMPLES] == list(membership.MESSAGES)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.op)
def test_a_message_survives_the_wire(message) -> None:
    assert parse_to_tracker(decode_json(encode(message)[4:]), membership.TO_TRACKER) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.op)
def test_a_server_and_a_board_do_not_know_them(message) -> None:
    with pytest.raises(BadMessage, match="unknown op"):
        parse_to_tracker(message.to_json())


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (membership.Invite, {"name": "bo", "kind": "q"}),
        (membership.Invite, {"name": "bo", "keys": ["a b"]}),
        (membership.Invite, {"name": "bo", "groups": ["g"] * 65}),
        (membership.Enrol, {"name": "bo", "kind": "b", "hash": "X" * 64}),
        (membership.Enrol, {"name": "bo", "kind": "b", "hash": "the secret itself"}),
        (membership.Enrol, {"name": "bo", "kind": "b", "hash": DIGEST, "keys": ["k"] * 65}),
        (membership.ReplaceToken, {"hash": 5}),
        (membership.ListMembers, {"limit": 0}),
        (membership.Audit, {"start": 0}),
    ],
)
def test_other_values_are_refused_and_no_secret_is_repeated(kind, fields) -> None:
    with pytest.raises(ProtocolError) as raised:
        kind.from_json({"op": kind.op, "id": 1, **fields})
    assert "the secret itself" not in str(raised.value)


def test_a_hello_says_nothing_of_a_lab_that_it_is_not_of() -> None:
    assert control.Hello("1").to_json() == {"op": "hello", "version": "1", "capabilities": [], "user": None}
    assert control.Hello("1", (), None, "T").to_json()["token"] == "T"
