"""A client behind a proxy with invalid answers: any bytes, cut anywhere, give one sentence in bounded time."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rpcsys.client import connect
from rpcsys.client.tracker import connect_tracker
from rpcsys.errors import RpcsysError
from rpcsys.wire import frames, handshake
from tests.client.test_false_server import HELLO, OURS, check, frame
from tests.scripted_peers import ScriptedTracker, mutated, one_shot_server

#: What a client hears of a session in which it lists a folder, and downloads 100 bytes.
TRUTH = (
    OURS
    + frame(frames.HELLO, HELLO)
    + frame(frames.LOG, {"message": "line", "level": 20})
    + frame(frames.RESULT, {"r": ["a", "b"]}, 1)
    + frame(frames.CHUNK, {"size": 100}, 2, bytes(100), flags=frames.LAST)
    + frame(frames.RESULT, {"r": {"size": 100, "sha256": hashlib.sha256(bytes(100)).hexdigest()}}, 2)
)
BOUND_S = 20.0
FAST = settings(deadline=None, max_examples=200)


def use(address):
    """Whether a session works; else its error must be ours, on one line and printable."""
    began = time.monotonic()
    try:
        with connect(*address, timeout=5) as session:
            return session.listdir() == ["a", "b"] and bytes(session.download("x")) == bytes(100)
    except RpcsysError as error:
        check(error)
        return False
    finally:
        assert time.monotonic() - began < BOUND_S


def test_valid_answers_open_a_session():
    with one_shot_server(TRUTH) as address:
        assert use(address)


def test_an_end_after_any_byte_is_one_error():
    for cut in range(len(TRUTH)):
        with one_shot_server(TRUTH[:cut]) as address:
            assert not use(address)


@FAST
@given(st.integers(0, len(TRUTH) - 1), st.binary(min_size=1, max_size=40), st.booleans())
@example(0, b"\0" * 4, False)
@example(len(OURS), b"\xff" * 24, False)
def test_random_bytes_in_mid_stream_are_one_error(place, garbage, instead):
    """In place of the valid bytes, or before them."""
    rest = TRUTH[place + len(garbage) :] if instead else TRUTH[place:]
    with one_shot_server(TRUTH[:place] + garbage + rest) as address:
        use(address)  # a list of other names cannot be noticed


@FAST
@given(
    st.binary(max_size=60)
    | st.tuples(
        st.sampled_from([handshake.encode_duplicate(), handshake.encode_mismatch(), OURS]), st.binary(max_size=60)
    ).map(b"".join)
)
def test_answers_of_any_form(said):
    with one_shot_server(said) as address:
        assert not use(address)


def test_an_endless_answer_takes_no_memory():
    for opening in (b"", OURS):
        before = psutil.Process().memory_info().rss
        with _endless(opening) as address:
            assert not use(address)
        assert psutil.Process().memory_info().rss - before < 64 << 20


@contextlib.contextmanager
def _endless(opening):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk():
            with contextlib.suppress(OSError):
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(opening)
                    while True:
                        sock.sendall(frame(frames.LOG, {"message": "x"}) * 1000)

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        yield listener.getsockname()
    thread.join(BOUND_S)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def tracker():
    with ScriptedTracker() as tracker:
        yield tracker


TICKET = {"event": "queued", "position": 1, "ahead": 0, "eta_s": None, "ticket": "t", "holders": []}
LEASE = {"lease": "l", "epoch": 1, "key": "k", "matchkey": "k:1", "host": "127.0.0.1", "port": 1, "limit_s": 5.5}


@settings(deadline=None, max_examples=80)
@given(event=mutated(TICKET), lease=mutated(LEASE))
def test_a_trackers_link_with_false_events_and_leases(tracker, event, lease):
    for field, value in (("host", "127.0.0.1"), ("port", 1)):  # no name is looked up
        if field in lease:
            lease[field] = value
    tracker.replies = lambda asked: [{**event, "id": asked["id"]}, {"ok": True, "leases": [lease], "id": asked["id"]}]
    began = time.monotonic()
    with pytest.raises(RpcsysError) as caught, connect_tracker(tracker.address) as client:
        client.request("k", wait_timeout=1)
    check(caught.value)
    assert time.monotonic() - began < BOUND_S
