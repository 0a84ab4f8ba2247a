"""Who gets an encrypted session, and what the others get. A recorded opening, cut and changed in every place."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcsys.client.secure_opening import SecureOpening
from rpcsys.errors import ServerRefused, WrongPin
from rpcsys.link import identity
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session import secure_opening
from rpcsys.wire import frames, handshake, pinned_keys
from rpcsys.wire.limits import DEFAULT
from tests import secured
from tests.secured import MATCH_KEY, OWN

OPTIONS = handshake.Options(session=handshake.SESSION)
ANSWER = handshake.encode_greeting(handshake.Greeting(handshake.SERVER, "key", OPTIONS))
JOB = Job("rpcsys/1", ANSWER, os.curdir, "key", "peer", matchkey=MATCH_KEY.text, seed=OWN.seed.hex())


class Accepting:
    """A session's process, as far as its opening, in a thread; ``sock`` is the client's end."""

    def __init__(self, job: Job = JOB) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(20)
        self._found: list[Any] = []
        self._thread = threading.Thread(target=self._accept, args=(theirs, job))
        self._thread.start()

    def _accept(self, sock: socket.socket, job: Job) -> None:
        self._found.append(secure_opening.accept(sock, job))
        if self._found[0] is None:
            sock.close()

    def outcome(self) -> Any:
        self._thread.join(20)
        return self._found[0]

    def __enter__(self) -> Accepting:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
        self.outcome()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_opening, "OPENING_S", 1.0)


def open_from(accepting: Accepting, match_key: pinned_keys.PinnedMatchKey, serve: str | None = None) -> Any:
    """The client's side behind the greeting in the clear."""
    opening = SecureOpening(match_key, "here:1")
    accepting.sock.sendall(opening.first.partition(b"rpcsys/1")[2])
    assert accepting.sock.recv(len(ANSWER), socket.MSG_WAITALL) == ANSWER
    return opening.finish(accepting.sock, serve, time.monotonic() + 20, DEFAULT)


def test_the_right_secret_opens() -> None:
    with Accepting() as accepting:
        threading.Timer(0.0, lambda: answer(accepting)).start()
        stream = open_from(accepting, MATCH_KEY)
        stream.send(frames.pack(frames.PING, 7))
        server, answered = accepting.outcome()
        assert answered == ANSWER
        assert server.receive().call_id == 7


def answer(accepting: Accepting) -> None:
    stream, answered = accepting.outcome()
    stream.send([answered])


@pytest.mark.parametrize(
    "wrong", [MATCH_KEY._replace(secret="6" * 32), MATCH_KEY._replace(key="other"), MATCH_KEY._replace(secret="")]
)
def test_a_wrong_secret_is_a_mismatch(wrong: pinned_keys.PinnedMatchKey) -> None:
    with Accepting() as accepting:
        with pytest.raises(ServerRefused, match="does not take this match key's secret") as refused:
            open_from(accepting, wrong)
        assert accepting.outcome() is None
        assert not wrong.secret or wrong.secret not in str(refused.value)


def test_another_server_receives_a_handshake_and_nothing_else() -> None:
    other = identity.from_seed(b"2" * 32)
    with Accepting(JOB.__class__(**{**vars(JOB), "seed": other.seed.hex()})) as accepting:
        with pytest.raises(WrongPin) as wrong:
            open_from(accepting, MATCH_KEY)
        assert str(wrong.value) == (
            f"what answers at here:1 is not the server of this match key (its key is sha256:{other.pin[:8]}…): "
            "a wrong address, or somebody in between; nothing was sent"
        )
        assert accepting.outcome() is None


def test_shared_connections_and_deployments_are_refused_in_a_sentence() -> None:
    for serve in ("", "net"):
        with Accepting() as accepting:
            stream = open_from(accepting, MATCH_KEY, serve)
            error = stream.receive().fields()
            assert (error["type"], error["message"]) == ("ServerRefused", secure_opening.SESSIONS_ONLY)
            assert accepting.outcome() is None


def recorded() -> bytes:
    """All that a client says in an opening."""
    with Accepting() as accepting:
        thread = threading.Thread(target=answer, args=(accepting,))
        thread.start()
        said = bytearray()

        class Noting(socket.socket):
            def send(self, data: Any, *flags: int) -> int:
                count = super().send(data, *flags)
                said.extend(bytes(data)[:count])
                return count

        noting = Noting(fileno=os.dup(accepting.sock.fileno()))
        with noting:
            noting.setblocking(True)
            opening = SecureOpening(MATCH_KEY, "here:1")
            first = opening.first.partition(b"rpcsys/1")[2]
            said.extend(first)
            noting.sendall(first)
            noting.recv(len(ANSWER), socket.MSG_WAITALL)
            opening.finish(noting, None, time.monotonic() + 20, DEFAULT)
        thread.join()
        return bytes(said)


@pytest.fixture(scope="module")
def opening() -> bytes:
    return recorded()


def test_a_recorded_opening_opens_nothing(opening: bytes) -> None:
    with Accepting() as accepting:
        accepting.sock.sendall(opening)
        assert accepting.outcome() is None
    assert MATCH_KEY.secret.encode() not in opening


def test_an_opening_that_is_cut_anywhere_opens_nothing(opening: bytes) -> None:
    for cut in range(0, len(opening), 7):
        with Accepting() as accepting:
            accepting.sock.sendall(opening[:cut])
            accepting.sock.shutdown(socket.SHUT_WR)
            assert accepting.outcome() is None


@given(st.binary(min_size=1, max_size=600))
@settings(max_examples=30)
def test_garbage_opens_nothing(garbage: bytes) -> None:
    with Accepting() as accepting:
        accepting.sock.sendall(garbage)
        accepting.sock.shutdown(socket.SHUT_WR)
        assert accepting.outcome() is None


def test_a_client_that_waits_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_opening, "OPENING_S", 0.3)
    with Accepting() as accepting:
        assert accepting.outcome() is None


def test_older_versions_of_tls_are_refused() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.VerifyMode(0)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Accepting() as accepting:
        accepting.sock.recv(len(ANSWER), socket.MSG_WAITALL)
        with pytest.raises(ssl.SSLError, match=r"(?i)version"):
            context.wrap_socket(accepting.sock)
        assert accepting.outcome() is None


def test_a_rehearsal_opens_a_tunnel() -> None:
    secure_opening.rehearse()
    assert secured.tunnels()[0].open
