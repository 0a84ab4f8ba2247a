"""Answers over HTTP: in each form, cut at every byte, broken, and too long."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rpcsys.client.inference import InferenceModel, http
from rpcsys.client.inference.urls import parse_urls
from rpcsys.errors import LimitExceeded, ProtocolError, SessionLost
from tests.client.inference.scripted import WAIT_S, Asked, ScriptedServer, doubled, head, reply

X = np.arange(8, dtype="f4").reshape(2, 4)


def opened(server: ScriptedServer, inputs=(), outputs=(), url="") -> InferenceModel:
    return InferenceModel(parse_urls(url or server.url)[0], inputs, outputs, WAIT_S)


@pytest.fixture
def server():
    with ScriptedServer() as made:
        yield made


def chunked(answer: bytes, size: int) -> bytes:
    """An answer with its body in chunks."""
    top, _, body = answer.partition(b"\r\n\r\n")
    fields = [field for field in top.split(b"\r\n") if not field.startswith(b"Content-Length")]
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    sent = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    return b"\r\n".join([*fields, b"Transfer-Encoding: chunked", b"", b""]) + sent


def to_the_end(answer: bytes) -> bytes:
    top, _, body = answer.partition(b"\r\n\r\n")
    fields = [field for field in top.split(b"\r\n") if not field.startswith(b"Content-Length")]
    return b"\r\n".join([*fields, b"", b""]) + body


FORMS = {
    "chunks of a byte": lambda answer: chunked(answer, 1),
    "chunks": lambda answer: chunked(answer, 100),
    "to the end": to_the_end,
    "announced": lambda answer: b"HTTP/1.1 100 Continue\r\n\r\n" * 2 + answer,
}


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_may_have_another_form(server, form) -> None:
    server.infer = lambda asked: FORMS[form](doubled(asked))
    model = opened(server)
    for _ in range(2):
        y = model.call(X)
        assert np.array_equal(y, 2 * X)
        assert y.flags.aligned
    model.close()


@pytest.mark.parametrize("form", [lambda answer: answer, lambda answer: chunked(answer, 40)], ids=["length", "chunks"])
def test_an_answer_cut_at_any_byte_is_a_lost_connection(server, form) -> None:
    model = opened(server)
    whole = form(doubled(Asked("", {}, {"inputs": [{"name": "x", "shape": [2, 4]}],
                                        "parameters": {"binary_data_output": True}}, X.tobytes())))  # fmt: skip

    def infer(asked: Asked) -> None:
        (sock,) = server._open
        sock.sendall(whole[:size])

    server.infer = infer
    for size in range(len(whole)):  # noqa: B007 - `infer` reads it
        with pytest.raises(SessionLost):
            model.call(X)
        while server._open:
            time.sleep(0.001)
    server.infer = lambda asked: whole
    assert np.array_equal(model.call(X), 2 * X)
    model.close()


OUTPUT = {"name": "y", "datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": 32}}


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/2 200\r\n\r\n", head(200, Content_Length="9" * 15), b"HTTP/1.1 1",
        head(200, Content_Length="-1"), reply(b"no JSON"), reply(b"[" * 100_000), reply([1]), reply({"outputs": []}),
        reply({"outputs": [{**OUTPUT, "name": "other"}]}, binary=bytes(32)),
        reply({"outputs": [OUTPUT]}, binary=bytes(31)), reply({"outputs": [OUTPUT]}, binary=bytes(33)),
        reply({"outputs": [{**OUTPUT, "shape": [3, 4]}]}, binary=bytes(32)),
        reply({"outputs": [{**OUTPUT, "datatype": "FP33"}]}, binary=bytes(32)),
        reply({"outputs": [OUTPUT]}, binary=bytes(32), **{"Inference-Header-Content-Length": 10**6}),
        reply({"outputs": [OUTPUT]}, binary=bytes(32), **{"Inference-Header-Content-Length": "1e3"}),
        reply({"outputs": [{"name": "y", "datatype": "FP32", "shape": [8], "data": ["a"] * 8}]}),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100, b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10_000,
        head(200, Transfer_Encoding="chunked") + b"zz\r\n",
    ],
    ids=range(20),
)  # fmt: skip
def test_what_is_no_answer_is_a_documented_error(server, answer) -> None:
    server.infer = lambda asked: answer + b"Connection: close"
    model = opened(server)
    with pytest.raises((ProtocolError, SessionLost), match=server.url):
        model.call(X)
    server.infer = doubled
    assert np.array_equal(model.call(X), 2 * X)
    model.close()


def test_too_much_json_is_refused_before_memory_is_taken(server, monkeypatch) -> None:
    monkeypatch.setattr(http, "_MAX_JSON", 1000)
    server.infer = lambda asked: reply(b" " * 2000)
    model = opened(server)
    with pytest.raises(LimitExceeded, match="2000 bytes of JSON"):
        model.call(X)
    model.close()


def test_the_heads_of_requests_are_bounded(server) -> None:
    model = opened(server)
    for rows in range(1, http._HEADS + 20):
        model.call(np.zeros((rows, 4), "f4"))
    assert len(model._carrier._heads) <= http._HEADS
    model.close()
