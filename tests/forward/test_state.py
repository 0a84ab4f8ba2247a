"""What is forwarded, what is answered on the desk, and which session is whose."""

from __future__ import annotations

from typing import Any

import pytest

from rpcsys.errors import ServerRefused, Unauthorized
from rpcsys.forward.state import LEASE_S, MAX_LEASES, DeskLease, ForwardState, failure, is_hello
from rpcsys.wire.handshake import CLIENT, SERVER, Greeting

KEY = "rpi4:t1-" + "ab" * 32 + "-" + "cd" * 16
OWN = ["127.0.0.1", 9190]


def state() -> ForwardState:
    return ForwardState("127.0.0.1", 9190)


def test_a_lease_is_at_the_desks_own_address_and_its_session_at_the_servers() -> None:
    one = state()
    assert one.reply([0, ["10.0.0.7", 9090, KEY]], 5.0) == [0, [*OWN, KEY]]
    assert one.session(Greeting(CLIENT, KEY), 6.0) == DeskLease("10.0.0.7", 9090, KEY, 5.0 + LEASE_S)
    with pytest.raises(ServerRefused) as caught:
        one.session(Greeting(CLIENT, KEY), 6.0)
    assert "rpi4:t1-abab… was not leased here" in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [0, -1, [0, {"queue_info": {}}], [-1, "you may not"], {"id": 1}, [], [0, ["a", "b"]], [0, [1, 2, 3]], None],
)
def test_what_is_no_lease_stays_as_it_is(message: Any) -> None:
    one = state()
    assert one.reply(message, 0.0) == message
    assert not len(one)


@pytest.mark.parametrize("key", ["rpi4:0.123", KEY.replace("t1", "t2"), KEY + "0"])
def test_a_server_that_does_not_encrypt_is_used_only_if_the_lab_allows_it(key: str) -> None:
    one = state()
    code, why = one.reply([0, ["10.0.0.7", 9090, key]], 0.0)
    assert code == -1
    assert "the lab's rules do not allow that" in why
    assert key not in why
    assert one.reply([0, ["10.0.0.7", 9090, key], {"plain": True}], 0.0) == [0, [*OWN, key]]
    assert one.session(Greeting(CLIENT, key), 0.0).plain


def test_other_match_keys_and_roles_are_refused_without_the_key_in_the_message() -> None:
    one = state()
    one.reply([0, ["10.0.0.7", 9090, KEY]], 0.0)
    for greeting in (Greeting(CLIENT, "rpi4"), Greeting(CLIENT, KEY[:-1] + "0"), Greeting(SERVER, KEY)):
        with pytest.raises(ServerRefused) as caught:
            one.session(greeting, 0.0)
        assert KEY not in str(caught.value)


def test_leases_are_forgotten_in_time_and_number() -> None:
    one = state()
    one.reply([0, ["10.0.0.7", 9090, KEY]], 0.0)
    with pytest.raises(ServerRefused):
        one.session(Greeting(CLIENT, KEY), LEASE_S + 1.0)
    for number in range(MAX_LEASES + 10):
        one.reply([0, ["10.0.0.7", 9090, f"{KEY[:-6]}{number:06x}"]], 100.0)
    assert len(one) == MAX_LEASES


def test_servers_register_with_the_tracker_itself() -> None:
    one = state()
    assert [one.own_answer([code]) for code in (2, 3, 5, 7)] == [-1] * 4
    assert [one.own_answer(message) for message in ([1], [4, "rpi4", "", 1], [6], {"op": "whoami"}, 7)] == [None] * 5


def test_failures_are_in_the_form_that_each_asker_reads() -> None:
    error = Unauthorized("ask its keeper")
    refusal = {"ok": False, "error": "Unauthorized", "message": "ask its keeper"}
    hello = [1, {"op": "hello", "version": "1"}]
    assert failure([4, "rpi4", "", 1], error) == [-1, "ask its keeper"]
    assert failure([6], error) == [-1, "ask its keeper"]
    assert failure([1], error) == -1
    assert failure(hello, error) == refusal
    assert failure({"op": "whoami", "id": 3}, error) == {"id": 3, **refusal}
    assert [is_hello(each) for each in (hello, [1], [1, {}], [4, "rpi4"], {"op": "hello"}, 0)] == [True] + [False] * 5
