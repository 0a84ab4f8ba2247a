"""The server's pages, requested by correct, slow, large and silent probes."""

import collections
import socket
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rpcsys.server.supervisor import http
from rpcsys.server.supervisor.http import METRICS_TYPE, ServerMetrics, Web
from rpcsys.server.supervisor.loop import Loop


class Running(threading.Thread):
    """A thread that runs a loop with pages."""

    def __init__(self, pages, refusal=None):
        super().__init__(daemon=True)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.address = listener.getsockname()
        self.loop = Loop()
        self.web = Web(self.loop, listener, pages, refusal)
        self.halt = False
        self.start()

    def run(self):
        while not self.halt:
            self.loop.run_once(0.01)

    def get(self, path):
        url = "http://{}:{}{}".format(*self.address, path)
        with urllib.request.urlopen(url, timeout=30) as reply:
            return reply.headers["Content-Type"], reply.read()

    def dial(self):
        return socket.create_connection(self.address, timeout=30)


@pytest.fixture
def running():
    made = Running({"/healthz": lambda: ("text/plain", b"ok\n"), "/big": lambda: ("text/plain", b"x" * 9000)})
    yield made
    made.halt = True
    made.join(30)
    made.web.close()
    made.loop.close()


def test_pages_are_served_by_path(running):
    assert running.get("/healthz") == ("text/plain", b"ok\n")
    assert running.get("/healthz?x=y")[1] == b"ok\n"
    assert len(running.get("/big")[1]) == 9000
    with pytest.raises(urllib.error.HTTPError, match="404"):
        running.get("/etc/passwd")


def test_who_may_not_read_is_told_why():
    asked = []

    def refusal(*request):
        asked.append(request)
        return "not for you" if request[0] == "/metrics" else ""

    made = Running({"/healthz": lambda: ("text/plain", b"ok\n"), "/metrics": lambda: ("text/plain", b"7\n")}, refusal)
    try:
        assert made.get("/healthz")[1] == b"ok\n"
        with made.dial() as sock:
            sock.sendall(b"GET /metrics?x HTTP/1.1\r\nHOST: lab:80\r\norigin:http://there\r\n\r\n")
            answer = b"".join(iter(lambda: sock.recv(4096), b""))
    finally:
        made.halt = True
        made.join(30)
        made.web.close()
        made.loop.close()
    assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert answer.endswith(b"\r\n\r\nnot for you\n")
    assert asked[1] == ("/metrics", "127.0.0.1", "127.0.0.1", "lab:80", "http://there")


def test_slow_requests_and_other_methods_are_answered(running):
    with running.dial() as sock:
        for byte in b"HEAD /healthz HTTP/1.0\r\nHost: x\r\n\r\n":
            sock.sendall(bytes([byte]))
        reply = sock.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert reply.endswith(
        b"Content-Length: 3\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    with running.dial() as sock:
        sock.sendall(b"POST /healthz HTTP/1.1\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 405 ")


def test_a_large_or_silent_request_is_dropped(running, monkeypatch):
    with running.dial() as sock:
        with pytest.raises(ConnectionError):
            sock.sendall(b"x" * 10_000_000)
    with running.dial() as sock:
        sock.sendall(b"GET /healthz")
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(10) == b""
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.2)
    with running.dial() as sock:
        assert sock.recv(10) == b""
    assert running.get("/healthz")[1] == b"ok\n"


def test_one_connection_too_many_drops_the_oldest(running):
    crowd = [running.dial() for _ in range(3 * http.MAX_ASKING)]
    assert running.get("/healthz")[1] == b"ok\n"
    assert len(running.web._asking) <= http.MAX_ASKING
    for sock in crowd:
        sock.close()


def test_metrics_are_in_prometheus_format():
    counted = {"handshakes": collections.Counter(failed=2)}
    metrics = ServerMetrics('rpi"4\\', lambda: {"slots": 2, "running": 1}, {"python": "3.11.2"}, counted)
    metrics.ended("closed", 0.1, "")
    metrics.ended("closed", 2.0, "")
    metrics.ended("crashed", 1e6, "it could not be cleaned")
    assert METRICS_TYPE.startswith("text/plain; version=0.0.4")
    found = {
        (sample.name, sample.labels.get("outcome", sample.labels.get("le", ""))): sample.value
        for family in text_string_to_metric_families(metrics.page()[1].decode())
        for sample in family.samples
        if sample.labels["key"] == 'rpi"4\\'
    }
    text = metrics.page()[1].decode()
    assert all(family.documentation for family in text_string_to_metric_families(text))
    assert text.count("# HELP ") == text.count("# TYPE ") == 7
    assert f'rpcsys_server_info{{key="rpi\\"4{chr(92) * 2}",python="3.11.2"}} 1' in text
    assert found["rpcsys_server_slots", ""] == 2
    assert found["rpcsys_server_sessions_total", "closed"] == 2
    assert found["rpcsys_server_sessions_total", "crashed"] == 1
    assert found["rpcsys_server_sessions_total", "memory"] == 0
    assert found["rpcsys_server_faults_total", ""] == 1
    assert found["rpcsys_server_handshakes_total", "failed"] == 2
    assert found["rpcsys_server_handshakes_total", "done"] == 0
    assert found["rpcsys_server_session_seconds_bucket", "0.1"] == 1
    assert found["rpcsys_server_session_seconds_bucket", "5.0"] == 2
    assert found["rpcsys_server_session_seconds_bucket", "+Inf"] == 3
    assert found["rpcsys_server_session_seconds_count", ""] == 3
