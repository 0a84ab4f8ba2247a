"""Pages, and clients that are slow, do not read or open many connections."""

from __future__ import annotations

import asyncio
import gc
import http.client
import socket
import time

import pytest

from rpcsys.daemon import http as pages
from rpcsys.daemon.http import serve_pages, shared


def served(page, ask, pages=None):
    """The result of ``ask(port)``, run in a thread while the page is served at ``/page``."""

    async def run():
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        acceptor = serve_pages(listener, {"/page": page} if pages is None else pages)
        try:
            return await asyncio.to_thread(ask, acceptor.port)
        finally:
            acceptor.close()

    return asyncio.run(run())


def ask_for(port, path="/page", method="GET"):
    """The status, fields and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def status(port):
    return ask_for(port)[0]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "SING"])
def test_another_method_is_told_that_nothing_can_be_changed(method) -> None:
    code, fields, text = served(lambda: ("text/plain", b"page"), lambda port: ask_for(port, method=method))
    assert (code, fields["Allow"]) == (405, "GET, HEAD")
    assert text == "only GET and HEAD: nothing can be changed here\n"


def test_another_path_is_told_which_there_are() -> None:
    code, fields, text = served(lambda: ("text/plain", b"page"), lambda port: ask_for(port, "/elsewhere"))
    assert (code, text) == (404, "there are: /page\n")
    assert "Server" not in fields


def test_a_page_that_cannot_be_made_is_logged_without_its_url(caplog) -> None:
    def fail():
        raise ValueError("no page")

    assert served(fail, lambda port: ask_for(port, "/page?secret=7")[0]) == 500
    assert "no page" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.slow
def test_unread_pages_are_bounded_and_dropped(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(pages, "MAX_UNREAD", 64 << 20)
    monkeypatch.setattr(pages, "SEND_TIMEOUT_S", 3.0)

    def page():
        made.append(1)
        return "text/plain", bytes(16 << 20)

    def ask(port):
        socks = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(40)]
        for sock in socks:
            sock.sendall(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
        first = [sock.recv(12) for sock in socks]
        later = status(port)
        while later == 503:
            later = status(port)
        for sock in socks:
            sock.close()
        return first, later

    first, later = served(page, ask)
    assert sorted({line[9:] for line in first}) == [b"200", b"503"]
    assert sum(line.endswith(b"200") for line in first) <= 5  # one is admitted just below the bound
    assert later == 200  # the unread ones were closed
    assert len(made) <= 6


def test_nothing_is_kept_of_the_paths_that_were_asked_for() -> None:
    class Everywhere(dict):
        def __contains__(self, path: object) -> bool:
            return True

        def __missing__(self, path: str):
            return lambda: ("text/plain", b"page")

    def ask(port):
        assert {ask_for(port, f"/asked/{number}")[0] for number in range(20)} == {200}
        return [each for each in gc.get_objects() if isinstance(each, dict) and "/asked/7" in each.copy()]

    assert served(None, ask, Everywhere()) == []


def test_a_slow_page_is_made_once_for_all_waiting_requests() -> None:
    made = []

    async def make():
        made.append(1)
        await asyncio.sleep(1)
        return "text/plain", b"page"

    def ask(port):
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for _ in range(20)]
        for connection in connections:
            connection.request("GET", "/page")
        bodies = [connection.getresponse().read() for connection in connections]
        for connection in connections:
            connection.close()
        return bodies

    assert served(shared(make), ask) == [b"page"] * 20
    assert len(made) < 20


@pytest.mark.parametrize(("of_address", "in_all"), [(8, 512), (512, 8)])
def test_connections_are_bounded_until_others_end(monkeypatch, caplog, of_address, in_all) -> None:
    monkeypatch.setattr(pages, "MAX_CONNECTIONS", in_all)

    def ask(port):
        kept = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(30)]
        refused = 0
        for sock in kept[8:]:
            refused += sock.recv(1) == b""
        for sock in kept:
            sock.close()
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                return refused, status(port)
            except OSError:  # the server has not noticed all closed connections yet
                time.sleep(0.02)
        return refused, 0

    def handle(server, size, **more):
        return counted(server, size, of_address, **more)

    counted = pages.counted
    monkeypatch.setattr(pages, "counted", handle)
    assert served(lambda: ("text/plain", b"page"), ask) == (22, 200)
    assert "127.0.0.1 has 8 connections and gets no more" in caplog.text
    assert len([row for row in caplog.records if "gets no more" in row.message]) == 1


@pytest.mark.parametrize("said", [b"\x71\xf2\x02\x00", b"\x71\xf2\x0f\x00\x0a\0\0\0client:key"])
def test_a_peer_that_wanted_a_tracker_or_a_server_is_answered_at_once(said) -> None:
    def ask(port):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            sock.sendall(said)
            return b"".join(iter(lambda: sock.recv(4096), b"")), status(port)

    answer, after = served(lambda: ("text/plain", b"page"), ask)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert after == 200


@pytest.mark.parametrize("said", [b"", b"GET /page HTTP/1.1\r\nHost: x\r\nX-Long: "])
def test_a_slow_request_is_dropped(monkeypatch, said) -> None:
    monkeypatch.setattr(pages, "REQUEST_TIMEOUT_S", 1.0)

    def ask(port):
        with socket.create_connection(("127.0.0.1", port), timeout=0.1) as sock:
            sock.sendall(said)
            began = time.monotonic()
            while time.monotonic() - began < 30:
                try:
                    if said:
                        sock.sendall(b"x")
                    if not sock.recv(1):
                        return True
                except TimeoutError:
                    pass
                except ConnectionError:
                    return True
        return False

    assert served(lambda: ("text/plain", b"page"), ask)
