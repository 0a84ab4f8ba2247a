"""Somebody in the middle of a lab's lines, and members who use what is not theirs: nothing is said, nothing is served.

After each test the board serves, and no fault is counted on it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rpcsys import errors
from rpcsys.link import credential
from rpcsys.link.link import Link
from rpcsys.wire import frames, handshake, tokens
from rpcsys.wire.tokens import HolderKind
from tests.live.daemons import START_S, Daemons, wait_until
from tests.live.impostor import Impostor, impostor
from tests.live.middle import KEY, OURS, Site, behind_the_greeting, check_unharmed, middle_site, records
from tests.live.probe import MISMATCH, SESSION_MAGIC, LabProbe, Probe, SealedProbe, SessionProbe, TrackerProbe, opening
from tests.live.recording_relay import Change, Recorded, cut_at, nothing, recording

TLS_HANDSHAKE, TLS_DATA, TLS_ALERT = 22, 23, 21


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with middle_site(tmp_path_factory.mktemp("middle")) as site:
        yield site


@pytest.fixture
def site(whole: Site) -> Iterator[Site]:
    yield whole
    check_unharmed(whole)


# Versions


@pytest.mark.skipif(shutil.which("openssl") is None, reason="OpenSSL's own client is not here")
@pytest.mark.parametrize("version", ["tls1", "tls1_1", "tls1_2", "tls1_3"])
@pytest.mark.parametrize("where", ["tracker", "session", "front"])
def test_openssls_own_client_gets_tls_1_3_and_nothing_older(site: Site, where: str, version: str) -> None:
    with contextlib.ExitStack() as stack:
        address = "{}:{}".format(*site.tracker.address)
        if where != "tracker":
            lease = stack.enter_context(site.lease())
            site.line.change = greets(lease["matchkey"].rpartition("-")[0], OURS if where == "session" else "")
            address = site.line.where
        command = ["openssl", "s_client", f"-{version}", "-cipher", "DEFAULT:@SECLEVEL=0", "-connect", address]
        done = subprocess.run(command, input=b"", capture_output=True, timeout=60)
    said = done.stdout.decode(errors="replace")
    assert ("Cipher is TLS_" in said) == (version == "tls1_3"), said + done.stderr.decode(errors="replace")
    assert ("Cipher is (NONE)" in said) == (version != "tls1_3"), said


def greets(public: str, options: str) -> Change:
    """Say the greeting in the clear for a client that knows TLS alone, and keep the answer from it."""
    answer = 8 + len(f"server:{KEY} {options}".rstrip())

    def change(data: bytes, *, up: bool, before: int) -> bytes:
        if up:
            return data if before else opening(public, options) + data
        return data[max(0, answer - before) :]

    return change


# Another key


def heard_nothing(middle: Impostor, line: Recorded, minimum: int = 1) -> None:
    """Handshakes alone came: of a client's records, its Finished is the only one that may be encrypted."""
    assert middle.heard == b""
    found = [records(behind_the_greeting(bytes(each.up))) for each in line.connections]
    found = [each for each in found if each]
    assert len(found) >= minimum
    for kinds in found:
        assert kinds[0][0] == TLS_HANDSHAKE
        assert [size for kind, size in kinds if kind == TLS_DATA] in ([], [53], [69])  # of a Finished, or none


@pytest.fixture
def middle() -> Iterator[tuple[Impostor, Recorded]]:
    with impostor() as one, recording(one.address) as line:
        yield one, line


def test_a_desk_says_nothing_to_another_tracker(site: Site, middle: tuple[Impostor, Recorded]) -> None:
    one, line = middle
    with pytest.raises(errors.WrongPin, match="nothing was sent"):
        Link.open(line.address, credential=site.lab.keeper)
    heard_nothing(one, line)


@pytest.mark.parametrize("kind", ["board", "board behind a proxy", "proxy", "connect"])
def test_a_daemon_says_nothing_to_another_tracker(
    site: Site, middle: tuple[Impostor, Recorded], daemons: Daemons, tmp_path: Path, kind: str
) -> None:
    one, line = middle
    name = kind.replace(" ", "-")
    held = {"proxy": HolderKind.PROXY, "connect": HolderKind.PERSON}.get(kind, HolderKind.BOARD)
    keys = {"device_keys": (KEY,)} if held is HolderKind.BOARD else {}
    own = site.lab.join(name, held, **keys)._replace(trackers=(line.where,))
    path = tmp_path / "own.json"
    credential.write(str(path), own)
    server = ("rpcsys.server", "--key", KEY, "--name", name, "--tvm", "off", "--lab", str(path))
    local = ("--host", "127.0.0.1", "--port", "0")
    command = {
        "board": (*server, *local, "--tracker", line.where),
        "board behind a proxy": (*server, "--host", line.where, "--through-proxy"),
        "proxy": ("rpcsys.proxy", *local, "--tracker", line.where, "--lab", str(path)),
        "connect": ("rpcsys.forward", "--listen", "127.0.0.1:0", "--tracker", line.where),
    }[kind]
    daemon = daemons.launch(name, (sys.executable, "-m", *command), env={"RPCSYS_LAB": str(path)})
    wait_until(lambda: "is not lab basement" in daemon.stderr(), START_S, "it is told")
    wait_until(lambda: line.connections, START_S, "it has connected")
    heard_nothing(one, line)
    parts = tokens.parse(own.token)
    assert parts.secret.encode() not in line.said
    assert parts.secret not in daemon.stderr()


def test_a_client_says_nothing_to_another_server(site: Site, middle: tuple[Impostor, Recorded]) -> None:
    one, line = middle
    site.line.server = line.address
    assert "nothing was sent" in str(site.refuses(errors.WrongPin))
    heard_nothing(one, line)


def test_tvms_client_behind_connect_reaches_no_other_server(
    site: Site, middle: tuple[Impostor, Recorded], daemons: Daemons, tmp_path: Path
) -> None:
    one, line = middle
    path = tmp_path / "own.json"
    credential.write(str(path), site.lab.keeper)
    command = (sys.executable, "-m", "rpcsys.forward", "--listen", "127.0.0.1:0")
    desk = daemons.launch("connect", command, env={"RPCSYS_LAB": str(path)})
    desk.await_ready_line()
    site.line.server = line.address
    with TrackerProbe(desk.address) as tracker:
        host, port, match_key = tracker.lease(KEY)
        with SessionProbe((host, port), match_key) as session:
            session.socket.sendall(b"nobody may read this")
            assert session.code == MISMATCH or session.ended()
    wait_until(lambda: "is not the server" in desk.stderr(), START_S, "it is logged")
    heard_nothing(one, line)


# What is not one's own


def test_a_name_with_anothers_secret_and_a_used_key_are_mismatches(site: Site) -> None:
    with site.lease() as first, site.lease() as second, site.lease() as third:
        public = [lease["matchkey"].rpartition("-")[0] for lease in (first, second, third)]
        for options in ("", OURS):
            with SealedProbe(site.address, public[0], second["matchkey"], options) as probe:
                assert probe.code == MISMATCH  # and now the first key is used
            with SealedProbe(site.address, public[0], first["matchkey"], options) as probe:
                assert probe.code == MISMATCH
        with SealedProbe(site.address, public[1], f"{public[1]}-{'0' * 32}", OURS) as probe:
            assert probe.code == MISMATCH
        with site.connect(third) as session:
            assert session.ping() is None
            with pytest.raises(errors.ServerRefused):
                site.connect(third)


def test_a_recorded_opening_opens_nothing(site: Site) -> None:
    with site.lease() as lease, site.connect(lease) as session:
        assert session.ping() is None
        said = bytes(site.line.connections[-1].up)
        for again in (said, said[:300], behind_the_greeting(said)):
            with SessionProbe(site.address, "") as probe:
                assert probe.code == MISMATCH
            with contextlib.closing(Probe(site.address)) as raw:
                raw.socket.sendall(again)
                raw.socket.settimeout(30)
                assert raw.socket.recv(4) in (handshake.encode_mismatch(), b"")
        assert session.ping() is None


def test_tokens_and_match_keys_are_of_one_kind(site: Site) -> None:
    lab = site.lab
    held = {
        "p": lab.join("ann"), "b": lab.board("b2", (KEY,)), "x": lab.join("gate", HolderKind.PROXY)
    }  # fmt: skip

    def known() -> bool:
        with LabProbe(site.tracker.address) as probe:
            return probe.hello(held["x"].token)["ok"]

    wait_until(known, START_S, "the last one is known")
    register = {"op": "register", "id": 1, "key": KEY, "port": 9090}
    for kind, own in held.items():
        token = tokens.parse(own.token)
        for other in HolderKind:
            with LabProbe(site.tracker.address) as probe:
                answer = probe.hello(tokens.Token(other, token.id, token.secret).text, user="mo")
                assert answer["ok"] == (other.value == kind)
                if not answer["ok"]:
                    assert answer["error"] == "Unauthorized"
                    assert probe.ended()
                    continue
                assert answer["member"] == own.member
                for name in ("b1", "b2"):
                    allowed = (kind, name) == ("b", "b2")
                    assert probe.ask({**register, "name": name})["ok"] == allowed
                refused = probe.ask({"op": "request", "id": 2, "key": KEY}).get("error")
                assert refused == (None if kind == "p" else "Forbidden")
    with site.lease() as lease:
        with LabProbe(site.tracker.address) as probe:
            assert probe.hello(lease["matchkey"])["error"] == "Unauthorized"
        for said in (lab.keeper.token, held["b"].token, f"{KEY}:{held['b'].token}"):
            with SessionProbe(site.address, said, OURS) as probe:
                assert probe.code == MISMATCH
            public = lease["matchkey"].rpartition("-")[0]
        with SealedProbe(site.address, public, held["b"].token, OURS) as probe:
            assert probe.code == MISMATCH


# Openings that are changed on the way


def test_without_tls_in_the_opening_nothing_is_served(site: Site) -> None:
    """The ClientHello is dropped, and another greeting stands in its place, or none."""
    for instead in (b"", opening(f"{KEY}:x", OURS)):

        def strip(data: bytes, *, up: bool, before: int, instead: bytes = instead) -> bytes:
            if not up:
                return data
            return b"" if before else data[: len(data) - len(behind_the_greeting(data))] + instead

        site.line.change = strip
        site.refuses(errors.NoTls, errors.ServerUnreachable)


#: What may stand in the place of a server's answer in the clear.
ANSWERS = {
    "TVM's": b"server:rpi4",
    "another version": b"server:rpi4 -session=rpcsys/2",
    "no server": b"client:rpi4 -session=rpcsys/1",
    "more options": b"server:rpi4 -session=rpcsys/1 -tls=off -plain=1 -timeout=0.001",
    "twice": b"server:rpi4 -session=rpcsys/1 -session=rpcsys/1",
    "nothing": b"",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_another_answer_in_the_clear_changes_nothing(site: Site, name: str) -> None:
    """It is refused, or TLS follows as always: the session that is opened then is the server's."""
    text = ANSWERS[name]

    def replace(data: bytes, *, up: bool, before: int) -> bytes:
        if up or before:
            return data
        return SESSION_MAGIC.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text + behind_the_greeting(data)

    site.line.change = replace
    with site.lease() as lease:
        try:
            with site.connect(lease) as session:
                assert session.get_function("testing.echo")("right") == "right"
            assert text.startswith(b"server:rpi4 -session=rpcsys/1")
        except errors.RpcsysError:
            assert name != "more options"
        said = bytes(site.line.connections[-1].up)
        assert lease["matchkey"].rpartition("-")[2].encode() not in said
        assert not behind_the_greeting(said) or records(behind_the_greeting(said))


def test_an_answer_in_the_clear_is_no_session(site: Site) -> None:
    hello = b"".join(map(bytes, frames.encode(frames.HELLO, 0, {"version": 1, "window": {}, "capabilities": {}})))

    options = handshake.Options(session=handshake.SESSION)
    server = handshake.encode_greeting(handshake.Greeting(handshake.SERVER, KEY, options))

    def answer(data: bytes, *, up: bool, before: int) -> bytes:
        if up:
            return data
        return b"" if before else server * 2 + hello

    site.line.change = answer
    site.refuses(errors.NoTls)
    said = behind_the_greeting(bytes(site.line.connections[-1].up))
    assert {kind for kind, _ in records(said)} <= {TLS_HANDSHAKE, TLS_ALERT}
    site.line.change = lambda data, *, up, before: data if up or not before else hello
    site.refuses(errors.NoTls)


ALERTS = {"close": b"\x15\x03\x03\x00\x02\x01\x00", "fatal": b"\x15\x03\x03\x00\x02\x02\x28"}


@pytest.mark.parametrize("alert", ALERTS)
@pytest.mark.parametrize("toward_server", [True, False])
def test_an_alert_between_records_ends_it(site: Site, alert: str, toward_server: bool) -> None:
    def places(data: bytes) -> list[int]:
        found = [len(data) - len(behind_the_greeting(data))]
        while found[-1] < len(data):
            found.append(found[-1] + 5 + int.from_bytes(data[found[-1] + 3 : found[-1] + 5], "big"))
        return found

    for number in range(4):

        def inject(data: bytes, *, up: bool, before: int, number: int = number) -> bytes:
            if up is not toward_server:
                return data
            found = [len(data)] if before else places(data)
            place = found[min(number, len(found) - 1)]
            return data[:place] + ALERTS[alert] + data[place:]

        site.line.change = inject
        with site.lease() as lease, pytest.raises(errors.RpcsysError):
            site.connect(lease).get_function("testing.echo")(np.zeros(1000))


def test_a_result_that_is_cut_is_no_result(site: Site) -> None:
    sent = np.arange(300_000, dtype="u4")
    for cut in (0, 1, 20_000, 600_000, sent.nbytes, sent.nbytes + 100):
        site.line.change = nothing
        with site.lease() as lease, site.connect(lease) as session:
            echo = session.get_function("testing.echo")
            assert (echo(sent) == sent).all()
            site.line.change = cut_at(len(site.line.connections[-1].down) + cut, in_up=False)
            with pytest.raises(errors.SessionLost):
                echo(sent)
