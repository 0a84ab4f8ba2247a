"""Waiting streams: their states, and the indexes to find them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.proxy.waiting import (
    END,
    NOT_OFFERED,
    OFFER,
    OFFERED,
    OVER,
    RETURNED,
    TAKEN,
    TRANSITIONS,
    WAITING,
    StreamEvent,
    StreamState,
    WaitingStream,
    WaitingStreams,
)


def stream(conn: int, name: str = "k", role: str = "client", until: float | None = None, server: str = ""):
    return WaitingStream(conn, f"10.0.0.{conn % 3}", role, "k", name, server, 0.0, until)


def test_every_state_ends_once() -> None:
    assert set(TRANSITIONS) == set(StreamState)
    for state, events in TRANSITIONS.items():
        assert events.get(END) == (None if state is OVER else OVER)
    for event in StreamEvent:
        with pytest.raises(KeyError):
            WaitingStream(1, "", "client", "k", "k", "", 0.0, None, OVER).change(event)


def test_an_offer_is_granted_returned_and_offered_again() -> None:
    one = stream(1)
    one.state = NOT_OFFERED
    for event in (OFFER, TAKEN, OFFER, TAKEN, RETURNED, RETURNED):
        one.change(event)
    assert one.state is OFFERED
    with pytest.raises(KeyError):
        stream(2).change(OFFER)  # waits under its own name
    assert stream(2).state is WAITING


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "rename"]), st.integers(0, 5), st.sampled_from("abc"), st.booleans())
)


@given(STEPS)
def test_the_indexes_agree_with_a_model(steps) -> None:
    streams, model = WaitingStreams(4, 2), {}
    for what, conn, name, own in steps:
        if what == "add" and conn not in model:
            new = stream(conn, name, "server" if own else "client", float(conn) if conn % 2 else None, "7" * own)
            if not streams.full(new.address):
                streams.add(new)
                model[conn] = new
        elif what == "remove" and conn in model:
            streams.remove(model.pop(conn))
        elif what == "rename" and conn in model:
            streams.rename(model[conn], name)
    assert {one.conn for one in streams} == set(model)
    assert len(streams) <= 4
    for role in ("client", "server"):
        for name in "abc":
            expected = {conn for conn, one in model.items() if (one.role, one.name) == (role, name)}
            assert set(streams.named(role, name)) == expected
    for name in "abc":
        assert streams.owned[name] == sum(bool(one.server) for one in model.values() if one.name == name)
    for one in list(streams):
        streams.remove(one)
    assert streams == WaitingStreams(4, 2)


def test_limit_errors_name_the_flag() -> None:
    streams = WaitingStreams(3, 2)
    for conn in (0, 3):
        streams.add(stream(conn))
    assert "--max-waiting-per-address" in streams.full("10.0.0.0")
    assert streams.full("10.0.0.1") == ""
    streams.add(stream(1))
    assert "3 streams wait already (--max-waiting)" in streams.full("10.0.0.1")


def test_expired_streams_come_in_order() -> None:
    streams = WaitingStreams(10, 10)
    for conn, role, until in ((1, "client", 5.0), (2, "client", 6.0), (3, "server", 4.0), (4, "server", None)):
        streams.add(stream(conn, str(conn), role, until))
    assert streams.next_deadline == 4.0
    over = []
    for one in streams.expired(5.0):
        streams.remove(one)
        over.append(one.conn)
    assert over == [1, 3]
    assert streams.next_deadline == 6.0
