"""The front: connections come in with a key and go back in plain; what it refuses is told."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rpcsys.server import front
from rpcsys.server.sandbox import messages
from rpcsys.wire.handshake import encode_greeting
from tests.link.terminators import ANSWER, INNER, KEY, OUTER, OWN, Both, readable


class FrontHarness:
    """A front in a thread; the test is its supervisor, and `Both` dials it in the client's role."""

    def __init__(self) -> None:
        self.control, theirs = messages.pair()
        self.control.settimeout(30.0)
        self.thread = threading.Thread(target=self._run, args=(theirs,))
        self.thread.start()
        self.desk = Both()
        self.last = 0

    def _run(self, control: socket.socket) -> None:
        with control:
            front.Front(control).run()

    def secure(self, key: Any = KEY, expected: str = KEY.text) -> socket.socket:
        """Dial with a match key, and give the connection to the front; the client's plain end."""
        client = self.desk.dial(key)
        sock = self.desk.incoming()
        said = encode_greeting(OUTER)
        self.desk.until(lambda: readable(sock, len(said)))
        assert sock.recv(len(said)) == said
        self.last += 1
        order = {"secure": self.last, "matchkey": expected, "seed": OWN.seed.hex(), "answer": ANSWER.decode("latin-1")}
        messages.send_json(self.control, sock.fileno(), **order)
        sock.close()
        return client

    def told(self) -> tuple[dict[str, Any], int | None]:
        """The front's next message, and the descriptor with it."""
        found: list[tuple[bytes, int | None]] = []
        waiting = threading.Thread(target=lambda: found.append(messages.receive(self.control)))
        waiting.start()
        self.desk.until(lambda: bool(found))
        waiting.join()
        data, descriptor = found[0]
        told = messages.parse(data, messages.OF_FRONT)
        return self.told() if told == {"took": True} else (told, descriptor)

    def close(self) -> None:
        self.control.close()
        self.thread.join()
        self.desk.close()


@pytest.fixture
def harness() -> Iterator[FrontHarness]:
    made = FrontHarness()
    yield made
    made.close()


def test_a_connection_goes_back_in_plain_with_its_options(harness: FrontHarness) -> None:
    client = harness.secure()
    told, descriptor = harness.told()
    assert told == {"secured": 1, "timeout_s": INNER.options.timeout_s}
    assert descriptor is not None
    with socket.socket(fileno=descriptor) as plain:
        plain.sendall(b"the answer")
        harness.desk.until(lambda: readable(client, 10))
        assert client.recv(10) == b"the answer"
        client.sendall(b"more")
        harness.desk.until(lambda: readable(plain, 4))
    client.close()


def test_a_wrong_secret_is_told_and_leaves_nothing(harness: FrontHarness) -> None:
    client = harness.secure(KEY._replace(secret="6" * 32))
    told, descriptor = harness.told()
    assert told["refused"] == 1
    assert "6666" not in told["why"]
    assert descriptor is None
    client.close()
    harness.desk.closed()


def test_any_secret_behind_a_public_name_is_told(harness: FrontHarness) -> None:
    other = KEY._replace(secret="6" * 32)
    client = harness.secure(other, expected=KEY.name)
    told, descriptor = harness.told()
    assert (told["secured"], told["said"]) == (1, other.text)
    assert descriptor is not None
    client.close()
    os.close(descriptor)
    assert harness.told() == ({"closed": 1}, None)


def test_such_a_connection_is_ended_with_last_words(harness: FrontHarness) -> None:
    client = harness.secure(expected=KEY.name)
    _, descriptor = harness.told()
    assert descriptor is not None
    messages.send_json(harness.control, end=[7, 1], words="over")
    assert harness.told() == ({"closed": 1}, None)
    with socket.socket(fileno=descriptor) as plain, client:
        assert plain.recv(10) == b""


def test_what_a_stranger_says_makes_no_broken_message() -> None:
    for said in ("a\nb" + "c" * 1000, "\n" * 1000, "\u202e" * 200, "net"):
        line = front._line(said)
        assert messages.parse(json.dumps({"serve": line}).encode(), messages.OF_FRONT) == {"serve": line}
    assert (front._line("net"), front._line(1.5)) == ("net", 1.5)


def test_many_one_after_another_leave_no_descriptors(harness: FrontHarness) -> None:
    counts = []
    for _ in range(3):
        client = harness.secure()
        _, descriptor = harness.told()
        assert descriptor is not None
        os.close(descriptor)
        client.close()
        harness.desk.closed()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[2] <= counts[0] + 2


def test_its_messages_have_checked_fields() -> None:
    data = json.dumps({"secured": 1, "session": "rpcsys/1", "pid": 7}).encode()
    assert messages.parse(data, messages.OF_FRONT) == {"secured": 1, "session": "rpcsys/1"}
