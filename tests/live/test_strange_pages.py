"""Pages of another site in a keeper's real browser try to read a lab's page on the same machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.live.browser import Browser
from tests.live.daemons import free_port
from tests.live.labs import LabOnDisk

STRANGE = "evil.example"
READ = """
    return fetch(arguments[0], {mode: arguments[1]}).then(
        (answer) => answer.text().then((text) => [answer.status, text]), (error) => ["error", String(error)])
"""


@pytest.fixture
def browser(tmp_path) -> Iterator[Browser]:
    """Its resolver has the strange site's name lead to this machine, as DNS rebinding does."""
    made = Browser(tmp_path, flags=[f"--host-resolver-rules=MAP {STRANGE} 127.0.0.1"])
    yield made
    made.close()


@pytest.fixture
def port(daemons, tmp_path) -> int:
    """That of the page of a lab whose keeper lets this machine see it."""
    lab = LabOnDisk(tmp_path)
    lab.allow('[page]\nopen = ["127.0.0.0/8"]')
    return lab.tracker(daemons, "--http-port", str(free_port())).ready["http_port"]


class Strange(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<h1>strange</h1>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """The port of a server of the strange site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Strange)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_keeper_sees_the_page(port, browser, host) -> None:
    browser.go(f"http://{host}:{port}/")
    browser.await_text("live")
    assert browser.run(READ, "/api/lab", "same-origin")[0] == 200


def test_a_name_that_leads_here_reads_nothing(port, browser) -> None:
    browser.go(f"http://{STRANGE}:{port}/")
    browser.await_text(f"'{STRANGE}:{port}' is no name of this machine")
    for path in ("/api/lab", "/api/summary", "/metrics"):
        status, text = browser.run(READ, path, "same-origin")
        assert (status, "no name of this machine" in text) == (403, True)


def test_another_origin_reads_nothing(port, browser, elsewhere) -> None:
    browser.go(f"http://{STRANGE}:{elsewhere}/")
    browser.await_text("strange")
    for host in ("127.0.0.1", "localhost", STRANGE):
        assert browser.run(READ, f"http://{host}:{port}/api/lab", "cors")[0] == "error"
        status, text = browser.run(READ, f"http://{host}:{port}/api/lab", "no-cors")
        assert (status, text) in ((0, ""), ("error", "TypeError: Failed to fetch"))
