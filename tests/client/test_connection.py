"""Opening a session: with servers, without one, with servers of other protocols, and with invalid answers."""

from __future__ import annotations

import logging
import socket
import time

import numpy as np
import pytest

from rpcsys.client import connect
from rpcsys.client.connection import open_session
from rpcsys.errors import (
    ConfigError,
    NotSupported,
    ProtocolError,
    RpcsysError,
    ServerRefused,
    ServerUnreachable,
    SessionLost,
    SessionTimeout,
    UsageError,
)
from rpcsys.wire import frames, handshake
from tests.device import scripted_server

OURS = handshake.encode_greeting(
    handshake.Greeting(handshake.SERVER, "key", handshake.Options(session=handshake.SESSION))
)
TVMS = handshake.encode_greeting(handshake.Greeting(handshake.SERVER, "key"))


def frame(kind, fields, call_id=0):
    return b"".join(map(bytes, frames.encode(kind, call_id, fields)))


def hello(**fields):
    return frame(frames.HELLO, {"version": 1, "window": {"calls": 4, "bytes": 1 << 20}, "capabilities": {}, **fields})


def test_a_session_opens_with_a_complete_hello():
    with scripted_server(OURS + hello(key="key")) as address, connect(*address, key="key") as session:
        assert session.address == address
        assert session.info["key"] == "key"
        assert session.lease == {}


def test_a_handshake_may_arrive_byte_by_byte():
    with scripted_server(*[bytes([byte]) for byte in OURS + hello()]) as address:
        connect(*address, key="key").close()


def test_an_address_may_be_one_string():
    with scripted_server(OURS + hello()) as (host, port):
        connect(f"{host}:{port}", key="key").close()


def test_missing_hello_fields_have_defaults():
    with scripted_server(OURS + frame(frames.HELLO, {})) as address, connect(*address) as session:
        assert session.info == {"window": {}, "capabilities": {}, "key": ""}


def test_a_second_hello_and_the_time_of_a_result_change_nothing(speedups):
    """In a call that is alone, made by C; in one like it before; and among several."""
    results = [b"".join(map(bytes, frames.encode(frames.RESULT, n, {"r": n}, deadline_ms=7))) for n in range(1, 8)]
    served = {"name": "m", "functions": ["main"], "inputs": [], "outputs": []}
    replies = b"".join(hello(serve=served) + result for result in results)
    with scripted_server(OURS + replies) as address, connect(*address, serve="m") as module:
        assert [module(1) for _ in range(3)] == [1, 2, 3]
        assert [future.result(30) for future in [module.submit(1) for _ in range(4)]] == [4, 5, 6, 7]


def test_log_lines_go_to_logging(caplog):
    line = frame(frames.LOG, {"level": logging.WARNING, "message": "hot"})
    other = frame(frames.LOG, {"level": "high"})
    reply = frame(frames.RESULT, {"r": None}, call_id=1)
    with caplog.at_level(logging.INFO, "rpcsys.session"):
        with scripted_server(OURS + hello() + line + other + reply) as address, connect(*address) as session:
            assert session.remove("x") is None
    assert [(record.levelname, record.message) for record in caplog.records] == [("WARNING", "hot"), ("INFO", "")]


REFUSALS = [
    ("wrong key", handshake.encode_mismatch(), ServerRefused, "'key' is not served at"),
    ("taken", handshake.encode_duplicate(), ServerRefused, "another client waits for 'key'"),
    ("TVM's", TVMS, NotSupported, "cannot do rpcsys/1 sessions"),
    ("echo", handshake.encode_greeting(handshake.Greeting("client", "key", handshake.Options(session="rpcsys/1"))),
     NotSupported, "cannot do rpcsys/1"),
    ("a page", b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError, r"is a page \(HTTP\); give the port"),
    ("a tracker", b"\x71\xf2\x02\x00", ProtocolError, "is a tracker; give the port of a device server"),
    ("no RPC", b"SSH-2.0-OpenSSH_9.2\r\n", ProtocolError, "is no RPC server or proxy; give the port"),
    ("long greeting", b"\x71\xf2\x0f\x00\xff\xff\xff\x7f", ProtocolError, "at most 4096"),
    ("garbage after the greeting", OURS + b"\0" * 100, ProtocolError, "kind 0"),
    ("a call", OURS + frame(frames.CALL, {}), ProtocolError, "a session begins with HELLO, not with CALL"),
    ("error", OURS + frame(frames.ERROR, {"type": "SessionTimeout", "message": "over"}), SessionTimeout, "over"),
    ("other error", OURS + frame(frames.ERROR, {"type": "Odd", "message": "x"}), SessionLost, "Odd: x"),
    ("hello of arrays", OURS + frame(frames.HELLO, {"window": np.ones(3)}), ProtocolError, "window must be an object"),
    ("hello of lists", OURS + hello(capabilities=[1]), ProtocolError, "capabilities must be an object"),
    ("closed window", OURS + hello(window={"calls": 0}), ProtocolError, "calls must be a whole number from 1"),
    ("window of words", OURS + hello(window={"bytes": "many"}), ProtocolError, "bytes must be a whole number from 1"),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "error", "message"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_wrong_answer_opens_no_session(reply, error, message):
    with scripted_server(reply) as address:
        with pytest.raises(error, match=message) as caught:
            connect(*address, key="key", timeout=20)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"", ServerRefused),
        (OURS[:9], ServerRefused),
        (OURS, ServerUnreachable),
        (OURS + hello()[:30], ServerUnreachable),
    ],
)
def test_a_server_that_hangs_up_is_an_error(reply, error):
    with scripted_server(reply, hang_up=True) as address, pytest.raises(error, match="%s:%d" % address):  # noqa: UP031
        connect(*address, key="key", timeout=20)


@pytest.mark.parametrize("reply", [b"", OURS[:9], OURS, OURS + hello()[:30]])
def test_a_server_that_stops_sending_is_a_timeout(reply):
    with (
        scripted_server(reply) as address,
        pytest.raises(ServerUnreachable, match=r"did not answer in time|did not greet in time"),
    ):
        connect(*address, key="key", timeout=0.3)


def test_a_slow_greeting_does_not_extend_the_timeout():
    """One timeout holds for the whole greeting: no byte restarts it."""
    with scripted_server(OURS, *(bytes([byte]) for byte in hello()), pause_s=0.1) as address:
        started = time.monotonic()
        with pytest.raises(ServerUnreachable, match="did not greet in time"):
            connect(*address, key="key", timeout=1)
        assert time.monotonic() - started < 4


def test_an_address_without_a_server_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(ServerUnreachable, match=r"no device server at .*\(Connection refused\); is it running"):
        connect(*address)


@pytest.mark.parametrize("address", [("127.0.0.1", 70000), ("..", 9090), ("a" * 70 + ".b", 9090)])
def test_an_invalid_address_is_an_error(address):
    with pytest.raises((UsageError, ServerUnreachable)):
        connect(*address)


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", ":9090", "host:99999"])
def test_an_invalid_address_string_is_a_usage_error(text):
    with pytest.raises(ConfigError):
        connect(text)


@pytest.mark.parametrize("key", ["with space", "k" * 5000, "new\nline"])
def test_an_invalid_key_is_refused(key):
    with pytest.raises(RpcsysError):
        open_session(("127.0.0.1", 1), key)


def test_a_host_may_have_its_port():
    with scripted_server(OURS + hello()) as (host, port), connect(f"{host}:{port}", port) as session:
        assert session.address == (host, port)
    with pytest.raises(UsageError, match="give the port once"):
        connect("127.0.0.1:9090", 9091)
