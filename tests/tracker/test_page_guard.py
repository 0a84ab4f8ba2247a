"""The page of a lab's tracker: who sees it from where, over HTTP and HTTPS."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rpcsys.link import identity
from rpcsys.link.credential import Credential
from tests.live.daemons import Daemon, free_port, wait_until
from tests.live.labs import LabOnDisk
from tests.live.networks import Namespace, Networks
from tests.live.probe import context

pytestmark = pytest.mark.live

HERE, DESK = "10.9.0.1", "10.9.0.7"
PORT, WEB = 9190, 8190
RULES = '[[allow]]\nwho = ["ann"]\nrights = ["see"]\n[[allow]]\nwho = ["bo"]\nkeys = ["rpi4"]\n'
LEAKED = "may have been read by others: count it as leaked, and have a keeper type rpcsys lab revoke NAME"


@dataclass
class Guarded:
    """A lab's tracker with a page in a namespace, a desk in another; members ann, who sees, and bo, who does not."""

    lab: LabOnDisk
    tracker: Daemon
    inside: Namespace
    desk: Namespace
    pin: str
    ann: Credential
    bo: Credential
    board: Credential

    def ask(
        self,
        path: str = "/api/summary",
        token: str = "",
        *,
        tls: bool = False,
        here: bool = False,
        method: str = "GET",
        **fields: str,
    ) -> tuple[int, str]:
        """Status and text of an answer to the desk, or with ``here`` to the tracker's machine."""
        if token:
            fields["Authorization"] = f"Bearer {token}"
        with (self.inside if here else self.desk).entered():
            host = "127.0.0.1" if here else HERE
            if tls:
                connection = http.client.HTTPSConnection(host, WEB, timeout=30, context=context())
            else:
                connection = http.client.HTTPConnection(host, WEB, timeout=30)
            connection.request(method, path, headers=fields)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
        return answer.status, text

    def audited(self) -> list[dict]:
        return [json.loads(line) for line in (self.lab.path / "audit.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def guarded(module_daemons, tmp_path_factory) -> Iterator[Guarded]:
    folder, daemons = tmp_path_factory.mktemp("guarded"), module_daemons()
    with Networks() as networks:
        inside, desk = networks.namespace("tracker"), networks.namespace("desk")
        link = networks.link(inside, desk)
        link.move(0, HERE)
        link.move(1, DESK)
        lab = LabOnDisk(folder, port=PORT)
        lab.allow(RULES)
        own = identity.new()
        (folder / "page.pem").write_text(own.pem())
        members = lab.join("ann"), lab.join("bo"), lab.board("board")
        flags = ("--lab", str(lab.path), "--http-port", str(WEB), "--http-cert", str(folder / "page.pem"))
        command = (sys.executable, "-m", "rpcsys.tracker", "--port", str(PORT), "--port-end", str(PORT + 1), *flags)
        tracker = daemons.launch("tracker", inside.inside(*command))
        tracker.await_ready_line()
        yield Guarded(lab, tracker, inside, desk, own.pin, *members)
        tracker.terminate()
        secrets = [one.token[-43:] for one in (*members, lab.keeper)]
        written = tracker.stderr() + (lab.path / "audit.jsonl").read_text()
        assert not [secret for secret in secrets if secret in written]
        daemons.stop()


@pytest.fixture
def opened(guarded) -> Iterator[None]:
    """The desk's network may see the page, and the tracker's machine."""
    guarded.lab.allow(f'[page]\nopen = ["10.9.0.0/24", "127.0.0.0/8"]\n{RULES}')
    wait_until(lambda: guarded.ask()[0] == 200, 10, "the desk's network is open")
    yield
    guarded.lab.allow(RULES)
    wait_until(lambda: guarded.ask()[0] == 401, 10, "the desk's network is closed")


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/summary", "/api/lab", "/page.js", "/nothing"])
@pytest.mark.parametrize("here", [False, True])
def test_without_a_token_a_member_is_told_what_to_do(guarded, path, here) -> None:
    status, text = guarded.ask(path, here=here)
    assert status == 401
    assert text.startswith("lab basement shows this to its members: type rpcsys connect --page 9180 on your desk, or ")
    assert text.endswith(f"have its keeper add {'127.0.0.1' if here else DESK} to [page] open\n")


@pytest.mark.parametrize("tls", [False, True])
def test_health_is_open_and_tells_nothing_else(guarded, tls) -> None:
    assert guarded.ask("/healthz", tls=tls) == (200, "ok\n")
    assert guarded.ask("/healthz", tls=tls, method="HEAD") == (200, "")
    assert guarded.ask("/healthz", here=True, Host="evil.example") == (200, "ok\n")


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/lab"])
def test_a_token_with_the_right_see_is_taken_inside_tls_and_from_here(guarded, path) -> None:
    assert guarded.ask(path, guarded.ann.token, tls=True)[0] == 200
    assert guarded.ask(path, guarded.ann.token, here=True)[0] == 200
    assert guarded.ask(path, guarded.lab.keeper.token, tls=True, method="HEAD")[0] == 200


def test_a_member_without_the_right_and_a_board_are_refused(guarded) -> None:
    status, text = guarded.ask(token=guarded.bo.token, tls=True)
    assert (status, text) == (
        403,
        "bo may not do this (it takes the right 'see' in the rules of lab basement); ask mo\n",
    )
    status, text = guarded.ask(token=guarded.board.token, tls=True)
    assert (status, text) == (403, "board is no person: boards and proxies see no page\n")


@pytest.mark.parametrize("path", ["/api/summary", "/healthz"])
def test_a_token_in_the_clear_is_refused_and_reported(guarded, path) -> None:
    status, text = guarded.ask(path, guarded.ann.token)
    assert status == 403
    assert text.startswith(f"a token over HTTP without TLS {LEAKED}")
    said = f"{DESK} said the token of ann over HTTP without TLS: it has leaked; type rpcsys lab revoke ann"
    wait_until(lambda: said in guarded.tracker.stderr(), 10, "it is logged")
    entry = {"who": "ann", "from": DESK, "did": "page", "result": "a token over HTTP without TLS: it has leaked"}
    wait_until(lambda: [row for row in guarded.audited() if entry.items() <= row.items()], 10, "it is audited")


def test_a_token_in_the_clear_is_found_however_it_is_said(guarded) -> None:
    token = guarded.ann.token
    password = base64.b64encode(f"ann:{token}".encode()).decode()
    for text in (token, f"Token {token}", f"bearer  {token}", f"Basic {password}"):
        assert guarded.ask(Authorization=text)[0] == 403, text


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("url", ["/api/summary?token={}", "/{}", "/metrics?a=b&x={}#y", "/healthz?t=%72pcsys{}"])
def test_a_token_in_a_url_is_refused_and_reported(guarded, tls, url) -> None:
    token = guarded.ann.token
    path = url.format(token.removeprefix("rpcsys") if "%72" in url else token)
    status, text = guarded.ask(path, tls=tls)
    assert status == 400
    assert text.startswith(f"a token in a URL {LEAKED}")
    said = "said the token of ann in a URL: it has leaked"
    wait_until(lambda: said in guarded.tracker.stderr(), 10, "it is logged")


def test_what_is_no_token_of_a_member_is_refused_without_its_text(guarded) -> None:
    other = guarded.ann.token[:-4] + "AAAA"
    for text in (other, "x", "rpcsys_p_", guarded.ann.token + "A"):
        status, answer = guarded.ask(token=text, tls=True)
        assert status == 401
        assert other[-20:] not in answer
    basic = base64.b64encode(f"ann:{guarded.ann.token}".encode()).decode()
    assert guarded.ask(tls=True, Authorization=f"Basic {basic}")[0] == 401


def test_an_opened_network_needs_no_token(guarded, opened) -> None:
    for path in ("/", "/metrics", "/api/lab"):
        assert guarded.ask(path)[0] == 200
        assert guarded.ask(path, tls=True)[0] == 200
        assert guarded.ask(path, here=True)[0] == 200
    assert guarded.ask("/metrics", Host="tracker.lab:8190")[0] == 200
    assert guarded.ask("/nothing")[0] == 404
    assert guarded.ask(token=guarded.ann.token)[0] == 403, "a token that is said in the clear has leaked there, too"
    assert guarded.ask(token=guarded.bo.token, tls=True)[0] == 403


def test_a_page_of_another_site_reads_nothing_in_a_users_browser(guarded, opened) -> None:
    for fields in ({"Host": "evil.example"}, {"Host": f"evil.example:{WEB}"}, {"Origin": "http://evil.example"}):
        status, text = guarded.ask(here=True, **fields)
        assert (status, "queue" in text) == (403, False)
    assert guarded.ask(here=True, Host="localhost", Origin="http://localhost")[0] == 200
    assert guarded.ask(Origin="http://evil.example")[0] == 403
    assert guarded.ask(method="OPTIONS", here=True, Origin="http://evil.example")[0] == 405


def test_a_revoked_member_sees_nothing_any_more(guarded) -> None:
    cy = guarded.lab.join("ann-2")
    guarded.lab.allow(RULES.replace('"ann"', '"ann", "ann-2"'))
    wait_until(lambda: guarded.ask(token=cy.token, tls=True)[0] == 200, 10, "ann-2 sees")
    guarded.lab.revoke("ann-2")
    wait_until(lambda: guarded.ask(token=cy.token, tls=True)[0] == 401, 10, "ann-2 is out")


def test_programs_that_ask_often_are_audited_once(guarded) -> None:
    for _ in range(5):
        assert guarded.ask("/metrics", guarded.lab.keeper.token, tls=True)[0] == 200

    def entries() -> list[dict]:
        return [row for row in guarded.audited() if row["did"] == "page" and row["who"] == "mo"]

    wait_until(entries, 10, "it is audited")
    assert len(entries()) == 1


def test_failures_slow_an_address_down_and_nobody_else(guarded) -> None:
    for _ in range(20):
        assert guarded.ask(token="x", tls=True)[0] == 401
    for here, least in ((False, 1.0), (True, 0.0)):
        start = time.monotonic()
        assert guarded.ask(token=guarded.ann.token, tls=True, here=here)[0] == 200
        assert time.monotonic() - start >= least
    counted = guarded.ask("/metrics", guarded.ann.token, tls=True)[1]
    assert 'rpcsys_tracker_unauthorized_total{why="credential"} ' in counted


def test_https_is_tls_1_3_with_the_given_certificate(guarded) -> None:
    older = context()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    connection = http.client.HTTPSConnection(HERE, WEB, timeout=30, context=older)
    with guarded.desk.entered(), pytest.raises(ssl.SSLError):
        connection.connect()
    with guarded.desk.entered():
        connection = http.client.HTTPSConnection(HERE, WEB, timeout=30, context=context())
        connection.connect()
        assert identity.pin(connection.sock.getpeercert(binary_form=True)) == guarded.pin
        connection.close()


def test_a_renewed_certificate_is_shown_to_new_connections(guarded) -> None:
    def pin() -> str:
        connection = http.client.HTTPSConnection(HERE, WEB, timeout=30, context=context())
        with guarded.desk.entered(), contextlib.closing(connection):
            connection.connect()
            return identity.pin(connection.sock.getpeercert(binary_form=True))

    for _ in range(2):
        own = identity.new()
        partial = guarded.lab.path.parent / "page.partial"
        partial.write_text(own.pem())
        partial.replace(guarded.lab.path.parent / "page.pem")
        wait_until(lambda own=own: pin() == own.pin, 20, "the renewed certificate is shown")
    partial.write_text("no certificate")
    partial.replace(guarded.lab.path.parent / "page.pem")
    said = "no certificate with its key"
    wait_until(lambda: pin() and said in guarded.tracker.stderr(), 20, "the log says that it cannot be used")
    assert pin() == own.pin


def test_an_open_lab_shows_its_page_as_before(daemons, tmp_path) -> None:
    lab = LabOnDisk(tmp_path, open_too=True)
    tracker = lab.tracker(daemons, "--http-port", str(free_port()))
    connection = http.client.HTTPConnection("127.0.0.1", tracker.ready["http_port"], timeout=30)
    connection.request("GET", "/api/summary")
    assert connection.getresponse().status == 200
    connection.close()
