"""The bare relay compiles and relays: a relay that loses bytes or serves one pair alone would be a bad measure."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.harness import cores
from benchmarks.peers.bare_relay import BareRelay, BareRelayedSessions
from benchmarks.peers.subject import Place

BLOB = os.urandom(1 << 20) * 8


@pytest.fixture
def place(tmp_path):
    return Place(cores()[0], tmp_path)


@pytest.fixture
def relay(place):
    if shutil.which("cc") is None:
        pytest.skip("there is no compiler")
    relay = BareRelay(place)
    try:
        relay.start()
        yield relay
    finally:
        relay.stop()


def received(sock):
    data = bytearray()
    while len(data) < len(BLOB) and (piece := sock.recv(1 << 20)):
        data += piece
    return bytes(data)


def test_pairs_have_their_own_bytes_both_ways_and_end_alone(relay):
    first, second = relay.pair(), relay.pair()
    for ends in (first, second, second[::-1]):
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(ends[0].sendall, BLOB)
            assert received(ends[1]) == BLOB
            sent.result()
    first[0].close()
    assert first[1].recv(1) == b""
    third = relay.pair()
    for sender, receiver in (second, third):
        sender.sendall(b"still here")
        assert receiver.recv(10) == b"still here"
    for sock in (first[1], *second, *third):
        sock.close()


@pytest.mark.parametrize("subject", [BareRelay, BareRelayedSessions])
def test_without_a_compiler_the_row_names_it(place, subject, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ModuleNotFoundError) as caught:
        subject(place)
    assert caught.value.name == "cc"
