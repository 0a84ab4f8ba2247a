"""curl, and clients that speak HTTP in pieces of their own, at a gateway."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.live import gateways
from tests.live.daemons import START_S, Daemons
from tests.live.gateways import Served

SIMPLE = "/v2/models/simple/infer"
REQUEST = {
    "id": "42",
    "inputs": [
        {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": list(range(16))},
        {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16},
    ],
}
ADDED = list(range(1, 17))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("inference")
    daemons = Daemons(folder)
    yield Served(daemons, folder, "--max-body", "64M")
    daemons.stop()


@dataclass
class Answer:
    """What curl was told: a status, header fields by their names in small letters, and a body."""

    status: int
    fields: dict[str, str]
    body: bytes
    version: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def output(self, name: str) -> Any:
        return next(output["data"] for output in self.json["outputs"] if output["name"] == name)


def curl(served: Served, path: str, *flags: str, data: bytes = b"") -> Answer:
    """Run curl with ``data`` on its standard input."""
    assert shutil.which("curl"), "type: apt-get install curl"
    command = [
        "curl",
        "--silent",
        "--show-error",
        "--include",
        "--max-time",
        "60",
        *flags,
        f"http://{served.http}{path}",
    ]
    done = subprocess.run(command, input=data, capture_output=True, timeout=START_S + 10, check=False)
    assert done.returncode == 0, done.stderr
    return answer(done.stdout)


def answer(said: bytes) -> Answer:
    """Parse an answer; those before the last, such as 100 Continue, are left out."""
    head, _, body = said.partition(b"\r\n\r\n")
    while b" 100 " in head.partition(b"\r\n")[0]:
        head, _, body = body.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    version, status = first.split()[:2]
    return Answer(int(status), fields, body, version)


def posted(*more: str) -> tuple[str, ...]:
    return ("--data-binary", "@-", *more)


TEXT = json.dumps(REQUEST).encode()


def test_one_line_of_curl_calls_a_model(served: Served) -> None:
    told = curl(served, SIMPLE, "-d", TEXT.decode())
    assert (told.status, told.fields["content-type"]) == (200, "application/json")
    assert (told.json["model_name"], told.json["model_version"], told.json["id"]) == ("simple", "1", "42")
    assert told.output("OUTPUT0") == ADDED
    assert told.json["outputs"][0] == {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16], "data": ADDED}


@pytest.mark.parametrize(
    "flags",
    [
        ("--http1.0",),
        ("--header", "Transfer-Encoding: chunked"),
        ("--header", "Expect: 100-continue"),
        ("--header", "Connection: close"),
        ("--header", "Content-Type:"),
        ("--header", "Content-Type: text/plain"),
        ("--compressed",),
    ],
    ids=lambda flags: flags[-1],
)
def test_each_way_to_post(served: Served, flags: tuple[str, ...]) -> None:
    told = curl(served, SIMPLE, *posted(*flags), data=TEXT)
    assert told.status == 200
    assert told.output("OUTPUT0") == ADDED


def test_a_large_chunked_body_that_waits_for_its_continue(served: Served) -> None:
    count = 1_000_000
    body = {"inputs": [{"name": "FP32", "shape": [count], "datatype": "FP32", "data": [0.5] * count}]}
    flags = posted("--header", "Transfer-Encoding: chunked", "--header", "Expect: 100-continue")
    told = curl(served, "/v2/models/fp32/infer", *flags, data=json.dumps(body).encode())
    assert told.status == 200
    assert told.output("same_FP32") == [0.5] * count


def test_the_connection_is_kept_and_closed_as_it_is_asked(served: Served) -> None:
    for flag, kept in (("--http1.1", 1), ("--http1.0", 2)):
        url = f"http://{served.http}/v2/health/live"
        command = ["curl", "--silent", "--write-out", "%{num_connects}\n", flag, url, url]
        done = subprocess.run(
            [*command, "-o", "/dev/null", "-o", "/dev/null"], capture_output=True, text=True, timeout=60
        )
        assert sum(map(int, done.stdout.split())) == kept, done.stdout


def test_health_and_descriptions(served: Served) -> None:
    assert curl(served, "/v2/health/live").json == {"live": True}
    assert curl(served, "/v2/health/ready").json == {"ready": True}
    assert curl(served, "/v2/models/simple/ready").json == {"name": "simple", "ready": True}
    assert curl(served, "/v2/models/simple/versions/1").json["inputs"][0]["name"] == "INPUT0"
    for flags in (("-X", "POST"), ("-d", ""), ("-d", "{}"), ("-d", '{"ready": true}')):
        rows = curl(served, "/v2/repository/index", *flags).json
        assert {"name": "simple", "version": "1", "state": "READY", "reason": ""} in rows


def test_a_head_has_the_fields_of_its_get(served: Served) -> None:
    got = curl(served, "/v2")
    asked = curl(served, "/v2", "--head")
    assert (asked.status, asked.body) == (200, b"")
    assert asked.fields["content-length"] == got.fields["content-length"] == str(len(got.body))


def short(name: str, datatype: str, shape: list[int]) -> str:
    """A request with one number."""
    return json.dumps({"inputs": [{"name": name, "shape": shape, "datatype": datatype, "data": [1]}]})


# --- what cannot be served ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "flags", "status", "message"),
    [
        ("/v2/models/x", (), 404, "Request for unknown model: 'x' is not found"),
        ("/v2/models/simple/versions/9", (), 404, "'simple' version 9 is not found; version 1 is served"),
        ("/nothing", (), 404, "/nothing"),
        (SIMPLE, (), 405, "POST"),
        ("/v2", ("-X", "DELETE"), 405, "GET"),
        ("/v2/logging", (), 501, "."),
        (SIMPLE, ("-d", "{"), 400, "JSON"),
        (SIMPLE, ("-d", "[]"), 400, "."),
        (SIMPLE, ("-d", '{"inputs": []}'), 400, "INPUT0"),
        (SIMPLE, ("-d", short("INPUT0", "INT32", [1, 16])), 400, "16"),
        (SIMPLE, ("-d", "\xff"), 400, "."),
        ("/v2/models/bf16/infer", ("-d", short("BF16", "BF16", [1])), 400, "binary"),
        ("/v2/systemsharedmemory/region/r/register", ("-d", '{"key": "/r", "offset": 0, "byte_size": 1}'), 501,
         "--shared-memory"),
    ],
)  # fmt: skip
def test_errors_are_a_status_and_a_sentence(
    served: Served, path: str, flags: tuple[str, ...], status: int, message: str
) -> None:
    told = curl(served, path, *flags)
    assert told.status == status, told.body
    (sentence,) = told.json.values()
    assert list(told.json) == ["error"]
    assert message in sentence if message != "." else sentence
    assert "Traceback" not in sentence
    assert told.status != 405 or told.fields["allow"]


def test_a_body_that_is_too_long_is_refused_before_it_is_sent(served: Served) -> None:
    told = curl(served, SIMPLE, *posted("--header", "Content-Length: 99999999999", "--expect100-timeout", "50"))
    assert told.status == 413
    assert "--max-body" in told.json["error"]


def test_numbers_of_64_bits_are_kept(served: Served) -> None:
    """In the JSON of request and answer, through a model with each of them."""
    shapes = {name: gateways.sample(name) for name in gateways.DATATYPES}
    given = {name: array[:3].tolist() for name, array in shapes.items()}
    given["INT64"] = [-(2**63), 2**63 - 1, 2**53 + 1]
    given["UINT64"] = [0, 2**64 - 1, 2**53 + 1]
    inputs = [{"name": name, "shape": [3], "datatype": name, "data": data} for name, data in given.items()]
    told = curl(served, "/v2/models/every/infer", *posted(), data=json.dumps({"inputs": inputs}).encode())
    assert told.status == 200, told.body
    assert told.output("same_INT64") == given["INT64"]
    assert told.output("same_UINT64") == given["UINT64"]
    for beyond in (2**64, -1):
        inputs[list(given).index("UINT64")]["data"] = [0, 1, beyond]
        told = curl(served, "/v2/models/every/infer", *posted(), data=json.dumps({"inputs": inputs}).encode())
        assert (told.status, "UINT64" in told.json["error"]) == (400, True), told.body


def test_what_json_has_no_number_for_is_asked_for_as_binary(served: Served) -> None:
    array = np.array([np.nan, np.inf], "f4").tobytes()
    for binary, status in ((False, 400), (True, 200)):
        described = {"name": "FP32", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": len(array)}}
        outputs = [{"name": "same_FP32", "parameters": {"binary_data": binary}}]
        head = json.dumps({"inputs": [described], "outputs": outputs}).encode()
        flags = posted("--header", f"Inference-Header-Content-Length: {len(head)}")
        told = curl(served, "/v2/models/fp32/infer", *flags, data=head + array)
        assert told.status == status or (not binary and told.status == 500)
        if binary:
            assert told.body.endswith(array)
        else:
            assert "binary" in told.json["error"]


def test_a_body_without_json_is_the_only_input(served: Served) -> None:
    array = np.arange(5, dtype="f4")
    flags = posted("--header", "Inference-Header-Content-Length: 0")
    told = curl(served, "/v2/models/fp32/infer", *flags, data=array.tobytes())
    assert told.status == 200
    assert told.body.endswith(array.tobytes()) or told.output("same_FP32") == array.tolist()


# --- in pieces ----------------------------------------------------------------------------------------


def request(text: bytes = TEXT, *fields: str, path: str = SIMPLE) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: gateway", f"Content-Length: {len(text)}", *fields]
    return "\r\n".join([*head, "", ""]).encode() + text


def connected(served: Served) -> socket.socket:
    return socket.create_connection(served.gateway.address, timeout=START_S)


def one(stream: Any) -> Answer:
    """The next answer of a connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        assert line, f"closed after {head!r}"
        head += line
    found = answer(head)
    return Answer(found.status, found.fields, stream.read(int(found.fields["content-length"])), found.version)


def test_one_byte_at_a_time(served: Served) -> None:
    with connected(served) as sock, sock.makefile("rb") as stream:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in request():
            sock.sendall(bytes([number]))
        assert one(stream).output("OUTPUT0") == ADDED


def test_chunks_of_one_byte(served: Served) -> None:
    chunks = b"".join(b"1;note=x\r\n%c\r\n" % number for number in TEXT) + b"0\r\nTrailer: x\r\n\r\n"
    head = f"POST {SIMPLE} HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with connected(served) as sock, sock.makefile("rb") as stream:
        sock.sendall(head + chunks + request())
        assert one(stream).output("OUTPUT0") == ADDED
        assert one(stream).output("OUTPUT0") == ADDED


def test_pipelined_requests_are_answered_in_their_order(served: Served) -> None:
    slow = json.dumps(
        {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0.3]}], "id": "slow"}
    ).encode()
    texts = [json.dumps({**REQUEST, "id": str(number)}).encode() for number in range(50)]
    with connected(served) as sock, sock.makefile("rb") as stream:
        sock.sendall(request(slow, path="/v2/models/nap/infer") + b"".join(map(request, texts)))
        assert [one(stream).json["id"] for _ in range(51)] == ["slow", *(str(number) for number in range(50))]


@pytest.mark.parametrize(
    "words",
    [
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v2 HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n a: b\r\n\r\n",
        b"GET /v2 HTTP/3.0\r\n\r\n",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_the_connection_ends(served: Served, words: bytes) -> None:
    with connected(served) as sock, sock.makefile("rb") as stream:
        sock.sendall(words + b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n")
        told = one(stream)
        assert 400 <= told.status < 600
        assert told.json["error"]
        assert stream.read() == b"", "what came behind it is not a request"


def test_a_handshake_of_tls_is_told_nothing_secret(served: Served) -> None:
    with connected(served) as sock, sock.makefile("rb") as stream:
        sock.sendall(bytes.fromhex("16030100c8010000c40303") + bytes(200))
        said = stream.read()
        assert said == b"" or said.startswith(b"HTTP/1.1 4")


def test_a_client_that_hangs_up_ends_its_call(served: Served) -> None:
    """Both workers of the model count without end; both are free again."""
    endless = {"inputs": [{"name": "n", "shape": [], "datatype": "INT64", "data": [10**12]}]}
    for _ in range(2):
        with connected(served) as sock:
            sock.sendall(request(json.dumps(endless).encode(), path="/v2/models/endless/infer"))
    endless["inputs"][0]["data"] = [3]
    told = curl(served, "/v2/models/endless/infer", *posted(), data=json.dumps(endless).encode())
    assert told.output("y") == [3]
