"""Calls over HTTP, to a scripted server: whole, cut at every byte, refused, too long; binary data and JSON."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import subprocess
import threading
import time

import numpy as np
import pytest

from rpcsys.client.inference import InferenceModel
from rpcsys.client.inference.urls import parse_urls
from rpcsys.errors import (
    Busy,
    DeadlineExceeded,
    ProtocolError,
    RemoteArgumentError,
    RemoteError,
    RemoteFunctionError,
    RpcsysError,
    ServerUnreachable,
    SessionLost,
    ValueNotSupported,
)
from rpcsys.module.kinds.remote import remote
from tests.client.inference.scripted import MODEL, WAIT_S, Asked, ScriptedServer, doubled, reply
from tests.live.daemons import wait_until
from tests.native import bare, lay_out
from tests.pythons import pythons

X = np.arange(8, dtype="f4").reshape(2, 4)


def opened(server: ScriptedServer, inputs=(), outputs=(), url="") -> InferenceModel:
    return InferenceModel(parse_urls(url or server.url)[0], inputs, outputs, WAIT_S)


@pytest.fixture
def server():
    with ScriptedServer() as made:
        yield made


def test_arrays_go_and_come_as_binary_data(server) -> None:
    model = opened(server)
    for _ in range(3):
        y = model.call(X)
        assert np.array_equal(y, 2 * X)
        assert (y.dtype, y.flags.writeable, y.flags.aligned) == (np.float32, True, True)
    model.close()
    assert [asked.line for asked in server.asked] == ["GET /v2", "GET /v2/models/m"] + ["POST /v2/models/m/infer"] * 3
    call = server.calls()[-1]
    assert call.binary == X.tobytes()
    assert call.fields["host"] == f"127.0.0.1:{server.port}"
    assert call.value["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]
    assert server.connections == 1


def test_what_is_declared_is_not_asked_for(server) -> None:
    model = opened(server, [{"name": "x"}], [{"name": "y"}], f"{server.url}/versions/2")
    assert np.array_equal(model.call(X), 2 * X)
    model.close()
    assert [asked.line for asked in server.asked] == ["GET /v2", "POST /v2/models/m/versions/2/infer"]


def test_a_path_before_the_models_is_kept(server) -> None:
    url = f"http://127.0.0.1:{server.port}/lab/triton/v2/models/m"
    model = opened(server, [{"name": "x"}], [{"name": "y"}], url)
    model.call(X)
    model.close()
    assert [asked.line for asked in server.asked] == ["GET /lab/triton/v2", "POST /lab/triton/v2/models/m/infer"]


def test_many_calls_have_a_connection_each(server) -> None:
    together = threading.Barrier(8)

    def infer(asked: Asked) -> bytes:
        together.wait(WAIT_S)
        return doubled(asked)

    server.infer = infer
    with remote(server.url) as far:
        futures = [far.submit(X + number) for number in range(8)]
        for number, future in enumerate(futures):
            assert np.array_equal(future.result(WAIT_S), 2 * (X + number))
        assert far.figures().opened == 1
    assert server.connections == 8


# --- data that are refused as binary ---------------------------------------------------------------------


def no_binary(refusal: bytes | None):
    return lambda asked: refusal if asked.binary else doubled(asked)


@pytest.mark.parametrize("status", [400, 415, 422, 500, None])
def test_a_server_without_binary_data_gets_json(server, status, caplog) -> None:
    server.server = {"name": "mlserver", "version": "1", "extensions": []}
    server.infer = no_binary(None if status is None else reply({"error": "what is that"}, status))
    with caplog.at_level(logging.WARNING), remote(server.url) as far:
        for _ in range(3):
            assert np.array_equal(far(X), 2 * X)
        assert far.figures().opened == 1
    assert [bool(asked.binary) for asked in server.calls()] == [True, False, False, False]
    assert server.calls()[-1].value["inputs"][0]["data"] == X.ravel().tolist()
    (line,) = [record.getMessage() for record in caplog.records if "binary" in record.getMessage()]
    assert line.startswith(f"{server.url} takes no binary tensors over HTTP: arrays go as JSON")
    assert "grpc://" in line


def test_a_first_answer_settles_that_binary_data_are_taken(server) -> None:
    server.server = {"name": "kserve", "version": "1", "extensions": []}
    model = opened(server)
    model.call(X)
    server.infer = lambda asked: reply({"error": "no"}, 400)
    with pytest.raises(RemoteArgumentError, match=r"no \(400\)"):
        model.call(X)
    model.close()
    assert len(server.calls()) == 2


def test_a_server_that_says_it_takes_binary_data_is_asked_once(server) -> None:
    server.infer = lambda asked: reply({"error": "no"}, 500)
    model = opened(server)
    with pytest.raises(RemoteError, match=r"m: no \(500\)"):
        model.call(X)
    model.close()
    assert len(server.calls()) == 1


def test_a_refusal_of_both_forms_is_the_second_one(server) -> None:
    server.server = {}
    server.infer = lambda asked: reply({"error": "binary" if asked.binary else "the shape is wrong"}, 400)
    model = opened(server)
    for _ in range(2):  # nothing is settled by it
        with pytest.raises(RemoteArgumentError, match=r"the shape is wrong \(400\)"):
            model.call(X)
    server.infer = doubled
    model.call(X)
    model.close()
    assert [bool(asked.binary) for asked in server.calls()] == [True, False] * 2 + [True]


def test_not_a_number_has_no_json(server) -> None:
    server.server = {}
    server.infer = no_binary(None)
    model = opened(server)
    with pytest.raises(ValueNotSupported, match="NaN and infinity"):
        model.call(X * np.nan)
    model.close()


# --- TLS -------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path):
    """A certificate of 127.0.0.1, and its key, in one file."""
    path = tmp_path / "certificate.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command = ["openssl", "req", "-x509", *kind, *names, "-keyout", str(path), "-out", str(tmp_path / "public.pem")]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (tmp_path / "public.pem").read_bytes())
    return path


def test_https_is_encrypted_and_checked(certificate, monkeypatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ScriptedServer(tls=context) as server:
        with pytest.raises(ServerUnreachable, match="certificate verify failed"):
            opened(server)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        model = opened(server)
        large = np.ones((1 << 18, 4), "f4")
        for x in (X, X, large, X):
            assert np.array_equal(model.call(x), 2 * x)
        model.close()


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, RemoteArgumentError), (422, RemoteArgumentError), (404, RemoteFunctionError), (500, RemoteError),
        (413, RemoteError), (501, RemoteError), (503, Busy), (429, Busy), (504, DeadlineExceeded),
        (408, DeadlineExceeded),
    ],
)  # fmt: skip
@pytest.mark.parametrize("body", [b'{"error": "why\\n\\u001b[31m"}', b'{"detail": "why"}', b"why", b"", b'["why"]'])
def test_a_refusal_is_an_error_with_the_url(server, status, error, body) -> None:
    server.infer = lambda asked: reply(body, status)
    model = opened(server)
    with pytest.raises(error) as caught:
        model.call(X)
    model.close()
    assert type(caught.value) is error
    assert server.url in str(caught.value)
    assert ("why" in str(caught.value)) == (b"why" in body)
    assert str(caught.value).isprintable()
    assert getattr(caught.value, "retryable", False) == (error is Busy)


def test_nobody_there_is_told_at_once() -> None:
    with ScriptedServer() as server:
        pass
    with remote(server.url) as far, pytest.raises(ServerUnreachable, match=f"127.0.0.1:{server.port}"):
        far(X)


def test_a_busy_server_at_the_opening_is_busy(server) -> None:
    server.server = lambda asked: reply({"error": "starting"}, 503)
    with pytest.raises(Busy, match="starting"):
        opened(server)


def test_a_model_that_is_not_described_has_to_be_declared(server) -> None:
    for model in ({}, [], {"inputs": [{"name": "x"}], "outputs": []}, {"inputs": 1, "outputs": []}):
        server.model = model
        with pytest.raises(ProtocolError, match="does not say its inputs"):
            opened(server)
    server.model = lambda asked: reply({"error": "no such model"}, 404)
    with pytest.raises(RemoteFunctionError, match="no such model"):
        opened(server)


def test_a_dropped_connection_is_lost_and_another_one_goes_on(server) -> None:
    model = opened(server)
    server.infer = lambda asked: None
    with pytest.raises(SessionLost, match=server.url):
        model.call(X)
    server.infer = doubled
    assert np.array_equal(model.call(X), 2 * X)
    server.close()
    with pytest.raises(SessionLost, match=f"127.0.0.1:{server.port}"):
        model.call(X)
    model.close()


def test_a_connection_that_the_server_closed_meanwhile_is_not_used(server) -> None:
    server.infer = lambda asked: doubled(asked).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    with remote(server.url, repeatable=False) as far:
        for _ in range(5):
            assert np.array_equal(far(X), 2 * X)
        server.infer = doubled
        assert np.array_equal(far(X), 2 * X)
        for sock in list(server._open):  # as after its time without a request
            sock.shutdown(socket.SHUT_RDWR)
        assert np.array_equal(far(X), 2 * X)
        assert far.figures().repeated == 0


def test_a_deadline_is_held(server) -> None:
    over = threading.Event()
    server.infer = lambda asked: (over.wait(WAIT_S), None)[1]
    with remote(server.url, deadline_s=0.2) as far:
        with pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
            far(X)
        over.set()
        server.infer = doubled
        assert np.array_equal(far(X), 2 * X)


def test_a_deadline_holds_while_an_answer_trickles(server) -> None:
    """Each byte comes in time, and all of them do not."""
    done = threading.Event()

    def infer(asked: Asked) -> None:
        (sock,) = server._open
        for byte in doubled(asked) * 99:
            if done.wait(0.02):
                return
            sock.send(bytes([byte]))

    server.infer = infer
    with remote(server.url, deadline_s=0.5) as far, pytest.raises(DeadlineExceeded):
        far(X)
    done.set()


def test_a_lost_call_ends_no_other_one(server) -> None:
    """On another connection: the others go on, and are not made again."""
    begun, over, losses = threading.Barrier(2), threading.Event(), [1]

    def infer(asked: Asked) -> bytes | None:
        if asked.binary == X.tobytes():
            begun.wait(WAIT_S)
            over.wait(WAIT_S)
        elif losses:
            return losses.pop() and None
        return doubled(asked)

    server.infer = infer
    with remote(server.url) as far:
        slow = far.submit(X)
        begun.wait(WAIT_S)
        lost = far.submit(0 * X)
        wait_until(lambda: far.figures().repeated, WAIT_S, "a call is made again")
        over.set()
        assert np.array_equal(slow.result(WAIT_S), 2 * X)
        assert np.array_equal(lost.result(WAIT_S), 0 * X)
        assert len([asked for asked in server.calls() if asked.binary == X.tobytes()]) == 1


def test_closing_ends_a_call(server) -> None:
    begun, over = threading.Event(), threading.Event()
    server.infer = lambda asked: (begun.set(), over.wait(WAIT_S), None)[2]
    far = remote(server.url)
    future = far.submit(X)
    begun.wait(WAIT_S)
    began = time.monotonic()
    far.close()
    with pytest.raises(RpcsysError):
        future.result(WAIT_S)
    assert time.monotonic() - began < WAIT_S / 2
    over.set()


# --- a bare interpreter ----------------------------------------------------------------------------------

CALL = """
import array, json
from rpcsys import module
with module.remote(sys.argv[1]) as far:
    y = far(array.array("f", range(4)))
print(json.dumps([y.tolist(), sorted(sys.modules)]))
"""


@pytest.mark.parametrize("python", pythons())
@pytest.mark.parametrize("binary", [True, False])
def test_a_bare_python_calls_one(server, binary, python, tmp_path) -> None:
    if not binary:
        server.server, server.infer = {}, no_binary(None)
    server.model = {name: [{**tensors[0], "shape": [4]}] for name, tensors in MODEL.items() if name.endswith("puts")}
    answer, loaded = json.loads(bare(lay_out(tmp_path), CALL, server.url, python=pythons()[python]))
    assert answer == [0, 2, 4, 6]
    assert not {"asyncio", "http", "http.client", "ssl", "email", "numpy", "urllib.parse"} & {*loaded}
