"""The tracker of a lab: who comes in, inside TLS, and who does not."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time

import pytest

from rpcsys import errors
from rpcsys.client import connect_tracker
from rpcsys.link import credential
from rpcsys.link.link import Link
from rpcsys.tracker import audit
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind
from tests.live.daemons import wait_until
from tests.live.labs import LabOnDisk, frame
from tests.live.probe import KEEPERS, TRACKER_MAGIC, LabProbe, TrackerProbe, context

pytestmark = pytest.mark.live
MAGIC = struct.pack("<i", TRACKER_MAGIC)


@pytest.fixture
def lab(tmp_path):
    return LabOnDisk(tmp_path)


@pytest.fixture
def tracker(lab, daemons):
    return lab.tracker(daemons)


def test_a_member_comes_in_and_is_told_of_the_lab(lab, tracker):
    with Link.open(tracker.address, credential=lab.keeper) as link:
        told = link.tracker
    assert (told["lab"], told["member"], told["kind"]) == ("basement", "mo", "p")
    assert "keeper" in told["rights"]
    assert tuple(told["pins"]) == lab.keeper.pins


def test_the_credential_of_the_address_is_found(lab, daemons, monkeypatch):
    monkeypatch.setenv("RPCSYS_CREDENTIAL", lab.join("ann").text())
    tracker = lab.tracker(daemons)
    with connect_tracker(tracker.address) as found:
        assert found.summary()["queue_info"] == {}


def test_without_a_credential_one_is_told_what_to_type(lab, tracker):
    with pytest.raises(errors.Unauthorized, match=f"lab at {lab.where} wants credentials.*rpcsys login"):
        connect_tracker(tracker.address)


def test_nothing_but_a_hello_is_answered_before_the_token(lab, tracker):
    for message in ([4, "rpi4", "ann", 1], [6], [1], {"op": "summary", "id": 7}, {"op": "members", "id": 7}, [7]):
        with LabProbe(tracker.address) as probe:
            probe.send(message)
            assert probe.receive()["error"] == "Unauthorized"
            assert probe.ended()


@pytest.mark.parametrize("token", [None, "", "rpcsys_p_aaaaaaaa_" + "A" * 43, "x" * 200])
def test_another_token_is_refused_and_the_connection_ends(lab, tracker, token):
    with LabProbe(tracker.address) as probe:
        answer = probe.hello(token)
        assert (answer["ok"], answer["error"]) == (False, "Unauthorized")
        assert probe.ended()


def test_a_token_of_another_kind_is_refused(lab, tracker):
    with LabProbe(tracker.address) as probe:
        assert probe.hello(lab.keeper.token.replace("rpcsys_p_", "rpcsys_b_"))["error"] == "Unauthorized"


def test_a_revoked_member_is_out_within_two_seconds(lab, tracker):
    ann = lab.join("ann")
    wait_until(lambda: comes_in(tracker, ann), 10, "ann is known")
    with Link.open(tracker.address, credential=ann) as link:
        lab.revoke("ann")
        revoked_at = time.monotonic()
        with pytest.raises(errors.TrackerLost):
            link.receive(20)
        assert time.monotonic() - revoked_at < 5
    with pytest.raises(errors.Unauthorized, match="revoked"):
        Link.open(tracker.address, credential=ann)


def comes_in(tracker, credential) -> bool:
    try:
        Link.open(tracker.address, credential=credential).close()
    except errors.Unauthorized:
        return False
    return True


def test_another_key_is_not_the_lab_and_gets_handshakes_only(tmp_path, lab, daemons):
    other = LabOnDisk(tmp_path, "attic")
    tracker = other.tracker(daemons, port=lab.port)
    with pytest.raises(errors.WrongPin, match=r"is not lab basement .* nothing was sent"):
        Link.open(tracker.address, credential=lab.keeper)


def test_a_tracker_without_tls_is_not_told_a_word(lab, daemons):
    tracker = daemons.tracker(port=lab.port)
    with pytest.raises(errors.NoTls, match=r"does not speak TLS 1\.3, and you have a credential of lab basement"):
        Link.open(tracker.address, credential=lab.keeper)


def test_tls_is_1_3_and_nothing_older(tracker):
    older = context()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError), socket.create_connection(tracker.address, 10) as sock:
        older.wrap_socket(sock)
    with socket.create_connection(tracker.address, 10) as sock, context().wrap_socket(sock) as sealed:
        assert sealed.version() == "TLSv1.3"


def test_tvms_client_is_told_a_sentence_and_may_ask_again(lab, tracker):
    with TrackerProbe(tracker.address) as probe:
        for _ in range(5):
            code, message = probe.ask([4, "rpi4", "ann", 1])
            assert code == -1
            assert "rpcsys connect" in message
            assert "[tvm] from" in message


def test_tvms_client_of_an_allowed_network_is_served(lab, daemons):
    lab.allow('[tvm]\nfrom = ["127.0.0.0/8"]\n[[allow]]\nwho = ["tvm"]\nkeys = ["rpi4"]\nrights = ["see"]\n')
    tracker = lab.tracker(daemons)
    with TrackerProbe(tracker.address) as server, TrackerProbe(tracker.address) as client:
        assert server.ask([5, {"key": "server:rpi4", "addr": [None, 9090]}]) == 0
        assert server.ask([3, "rpi4", [9090, "rpi4:0.5"], None]) == 0
        assert client.ask([6])[1]["queue_info"]["rpi4"]["free"] == 1
        assert client.ask([4, "rpi4", "ann", 1]) == [0, ["127.0.0.1", 9090, "rpi4:0.5"]]
        assert client.ask([4, "jetson", "ann", 1])[1].startswith("tvm may not lease jetson")
        client.send({"op": "members", "id": 3})
        assert client.receive()["error"] == "Unauthorized"


def test_a_peer_behind_a_proxy_begins_tls_after_the_proxys_word(lab, tracker):
    via = frame({"op": "via", "address": ["10.0.0.9", 1000], "proxy": [None, 9090]})
    with LabProbe(tracker.address, before=MAGIC + via) as probe:
        assert probe.hello(lab.keeper.token)["member"] == "mo"
        assert probe.ask([6])[0] == 0


def test_what_a_stranger_sends_is_small(tracker):
    with LabProbe(tracker.address) as probe:
        probe.socket.sendall(struct.pack("<i", 4097))
        assert probe.ended()
    with TrackerProbe(tracker.address) as probe:
        probe.socket.sendall(struct.pack("<i", 4097))
        assert probe.ended()


def test_a_stranger_who_says_nothing_is_dropped(tracker):
    with LabProbe(tracker.address) as probe, TrackerProbe(tracker.address) as plain:
        assert probe.ended()
        assert plain.ended()


@pytest.mark.parametrize("data", [b"\x16\x03\x01", b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\x02\x00" + bytes(512)])
def test_garbage_in_place_of_a_handshake_ends(lab, tracker, data):
    with socket.create_connection(tracker.address, 30) as sock:
        sock.sendall(data)
        try:
            while sock.recv(4096):
                pass
        except ConnectionError:
            pass
    assert comes_in(tracker, lab.keeper)


def test_a_board_offers_its_keys_alone_under_its_name(lab, daemons):
    board = lab.board("rpi4-3", ["rpi4"])
    tracker = lab.tracker(daemons)
    with LabProbe(tracker.address) as probe:
        assert probe.hello(board.token)["kind"] == "b"

        def register(**fields):
            return probe.ask({"op": "register", "id": 1, "key": "rpi4", "name": "rpi4-3", "port": 9, **fields})

        assert "start the server with --name rpi4-3" in register(name="jetson-1")["message"]
        assert (
            "may not offer jetson (it was enrolled for: rpi4); rpcsys lab revoke rpi4-3, then"
            in register(key="jetson")["message"]
        )
        assert register()["ok"]
        assert probe.ask([3, "jetson", [9, "jetson:1"], None]) == -1
        assert probe.ask([3, "rpi4", [9, "rpi4:1"], None]) == 0
        assert probe.ask({"op": "request", "id": 2, "key": "rpi4"})["error"] == "Forbidden"
    with LabProbe(tracker.address) as probe:
        probe.hello(lab.keeper.token)
        answer = probe.ask({"op": "register", "id": 1, "key": "rpi4", "name": "x", "port": 9})
        assert (answer["error"], "is no board" in answer["message"]) == ("Forbidden", True)


def test_a_server_without_a_name_has_its_credentials(lab, tracker, daemons, tmp_path, monkeypatch):
    credential.write(str(tmp_path / "board.json"), lab.board("rpi4-3"))
    daemons.server("rpi4", "--lab", str(tmp_path / "board.json"), tracker=tracker, offers=1)
    monkeypatch.setenv("RPCSYS_CREDENTIAL", lab.keeper.text())
    with connect_tracker(tracker.address) as found:
        assert [row["name"] for row in found.summary()["servers"]] == ["rpi4-3"]
        with found.request("rpi4", labels={"name": "rpi4-3"}):
            pass


def test_two_boards_with_one_credential_are_told_and_the_first_serves_on(lab, tracker, daemons, tmp_path, monkeypatch):
    path = str(tmp_path / "board.json")
    credential.write(path, lab.board("rpi4-3"))
    daemons.server("rpi4", "--lab", path, tracker=tracker, offers=1)
    second = daemons.server("rpi4", "--lab", path, "--tracker", tracker.where)
    sentence = "board rpi4-3 serves already, from 127.0.0.1: a credential is for one server"
    wait_until(lambda: sentence in second.stderr(), 20, "the second is told")
    assert second.stderr().count(sentence) == 1
    monkeypatch.setenv("RPCSYS_CREDENTIAL", lab.keeper.text())
    with connect_tracker(tracker.address) as found:
        for _ in range(3):
            with found.request("rpi4") as session:
                assert session.get_function("testing.echo")(1) == 1
        assert [row["name"] for row in found.summary()["servers"]] == ["rpi4-3"]
    assert second.running()


def test_an_open_lab_serves_both_and_tells_them_apart(tmp_path, daemons):
    lab = LabOnDisk(tmp_path, open_too=True)
    tracker = lab.tracker(daemons)
    with TrackerProbe(tracker.address) as plain, LabProbe(tracker.address) as member:
        assert plain.ask([1, {"op": "hello", "version": "0", "user": "mo"}])["ok"]
        assert "lab" not in plain.ask([1, {"op": "hello", "version": "0", "user": "mo"}])
        assert member.hello(lab.keeper.token)["member"] == "mo"
        plain.send({"op": "request", "id": 1, "key": "rpi4", "wait_for_key": True})
        assert plain.receive()["event"] == "queued"
        reasons = member.ask({"op": "why", "id": 2, "key": "rpi4"})["why"]
        assert [row["user"] for row in reasons["queue"]] == ["mo (unproven)"]
        plain.send({"op": "members", "id": 3})
        assert plain.receive()["error"] == "Unauthorized"


def test_rules_are_read_again_and_a_broken_one_changes_nothing(lab, daemons):
    lab.join("ann")
    ann = lab.join("bo")
    tracker = lab.tracker(daemons)
    with LabProbe(tracker.address) as probe:
        probe.hello(ann.token)

        def refused() -> str:
            probe.send({"op": "request", "id": 1, "key": "nokey", "wait_timeout": 0})
            answer = {}
            while "error" not in answer:  # it may be queued first
                answer = probe.receive()
            return answer["message"] if answer["error"] == "Forbidden" else ""

        assert not refused()
        lab.allow('[[allow]]\nwho = ["bo"]\nkeys = ["rpi4"]\n')
        wait_until(lambda: "bo may not lease nokey (rules of lab basement allow: rpi4)" in refused(), 10, "new rules")
        lab.allow("[[allow\n")
        wait_until(lambda: "the rules stay as they were" in tracker.stderr(), 10, "the mistake is told")
        assert refused()


def refused_start(daemons, *flags) -> str:
    daemon = daemons.launch("tracker", (sys.executable, "-m", "rpcsys.tracker", "--port", "0", *flags))
    assert daemon.process.wait(30) == 2
    return daemon.stderr()


def test_stop_key_and_lab_do_not_go_together(lab, daemons):
    assert "--stop-key is no secret" in refused_start(daemons, "--lab", str(lab.path), "--stop-key", "x")


def test_a_folder_that_others_may_read_is_refused(lab, daemons):
    lab.path.chmod(0o755)
    assert f"type chmod 700 {lab.path}" in refused_start(daemons, "--lab", str(lab.path))


def test_a_members_kind_is_that_of_its_token(lab, tracker):
    proxy = lab.join("gate", HolderKind.PROXY, device_keys=("rpi4",))
    wait_until(lambda: comes_in(tracker, proxy), 10, "the proxy is known")
    with Link.open(tracker.address, credential=proxy) as link:
        assert link.tracker["kind"] == "x"


def test_an_invitation_is_used_over_the_wire_and_its_member_comes_in(lab, tracker):
    with LabProbe(tracker.address) as keeper:
        keeper.hello(lab.keeper.token)
        invitation = tokens.parse_invitation(keeper.ask({"op": "invite", "id": 1, "name": "ann"})["invitation"])
    token = tokens.Token(HolderKind.PERSON, invitation.id, tokens.new_secret())
    words = f"{invitation.id}.{invitation.secret}"
    for _ in range(2):  # the same join
        with LabProbe(tracker.address) as joining:
            assert joining.hello(invitation=words, hash=token.hash)["member"] == "ann"
            assert joining.ask({"op": "whoami", "id": 1})["member"] == "ann"
    with LabProbe(tracker.address) as member, LabProbe(tracker.address) as other:
        assert member.hello(token.text)["member"] == "ann"
        assert other.hello(invitation=words, hash=tokens.hash_of("x"))["error"] == "Unauthorized"
        assert member.ask({"op": "invite", "id": 1, "name": "bo"})["error"] == "Forbidden"


def test_a_keeper_revokes_over_the_wire(lab, tracker):
    ann = lab.join("ann")
    wait_until(lambda: comes_in(tracker, ann), 10, "ann is known")
    with LabProbe(tracker.address) as keeper, LabProbe(tracker.address) as member:
        keeper.hello(lab.keeper.token)
        member.hello(ann.token)
        assert keeper.ask({"op": "revoke", "id": 1, "name": "ann"})["ok"]
        assert member.ended()


def test_a_rotation_puts_the_spare_in_service(lab, tracker):
    with LabProbe(tracker.address) as keeper:
        keeper.hello(lab.keeper.token)
        pins = keeper.ask({"op": "rotate", "id": 1})["pins"]
    assert pins[0] == lab.keeper.pins[1]

    def by_spare() -> bool:
        with Link.open(tracker.address, credential=lab.keeper) as link:
            return tuple(link.tracker["pins"]) == tuple(pins) and link.by_spare

    wait_until(by_spare, 10, "the spare is in service")


def test_a_lab_is_closed_over_the_wire(tmp_path, daemons):
    lab = LabOnDisk(tmp_path, open_too=True)
    tracker = lab.tracker(daemons)
    with TrackerProbe(tracker.address) as plain:
        assert plain.ask([6])[0] == 0
    with LabProbe(tracker.address) as keeper:
        keeper.hello(lab.keeper.token)
        assert keeper.ask({"op": "set_open", "id": 1, "open": False})["ok"]

    def closed() -> bool:
        with TrackerProbe(tracker.address) as plain:
            return plain.ask([6])[0] == -1

    wait_until(closed, 10, "strangers are refused")


def test_holders_follow_a_rotation_and_renew_their_tokens(lab, tracker, tmp_path):
    path = str(tmp_path / "mo.json")
    credential.write(path, lab.keeper)
    with LabProbe(tracker.address) as keeper:
        keeper.hello(lab.keeper.token)
        assert keeper.ask({"op": "renew_token", "id": 1, "name": "*"})["asked"] == 1
        pins = keeper.ask({"op": "rotate", "id": 2})["pins"]

    def followed() -> bool:
        Link.open(tracker.address, credential=credential.read(path)).close()
        held = credential.read(path)
        return list(held.pins) == pins and held.token != lab.keeper.token and not held.next_token

    wait_until(followed, 20, "the file has the new pins and token")
    assert comes_in(tracker, credential.read(path))
    wait_until(lambda: not comes_in(tracker, lab.keeper), 20, "the old token is void")
    KEEPERS[lab.port] = credential.read(path).token


def test_members_reach_the_tracker_through_a_proxy_of_the_lab(lab, daemons, tmp_path):
    path = str(tmp_path / "gate.json")
    credential.write(path, lab.join("gate", HolderKind.PROXY))
    tracker = lab.tracker(daemons)
    proxy = daemons.proxy("--tracker", tracker.where, "--lab", path)
    chained = daemons.proxy("--next", proxy.where)
    wait_until(lambda: "registered with the tracker" in proxy.stderr(), 20, "the proxy is a member")
    for gate in (proxy, chained):
        with Link.open(gate.address, credential=lab.keeper) as link:
            assert link.tracker["member"] == "mo"
            assert link.ask("whoami", timeout=20)["member"] == "mo"
        with pytest.raises(errors.Unauthorized, match="wants credentials"):
            Link.open(gate.address)


def test_a_strangers_word_where_it_is_changes_nothing(lab, daemons, tmp_path):
    """A proxy's word does, once it has proven its token: it decides who comes in the clear."""
    lab.allow('[tvm]\nfrom = ["10.9.9.9"]\n[[allow]]\nwho = ["tvm"]\nrights = ["see"]\n')
    tracker = lab.tracker(daemons)

    def served(address: str) -> bool:
        """Whether one is served in the clear who says that it is at an address."""
        with TrackerProbe(tracker.address) as probe:
            probe.send({"op": "via", "address": [address, 1], "proxy": [None, 9090]})
            return probe.ask([6])[0] == 0

    assert not served("10.9.9.9")
    path = str(tmp_path / "gate.json")
    credential.write(path, lab.join("gate", HolderKind.PROXY))
    proxy = daemons.proxy("--tracker", tracker.where, "--lab", path)
    wait_until(lambda: "registered with the tracker" in proxy.stderr(), 20, "the proxy is a member")
    assert served("10.9.9.9")
    assert not served("10.9.9.8")
    lab.revoke("gate")
    wait_until(lambda: not served("10.9.9.9"), 20, "its word counts no more")


def test_a_proxy_with_a_persons_credential_is_refused(lab, daemons, tmp_path):
    path = str(tmp_path / "ann.json")
    credential.write(path, lab.join("ann"))
    proxy = daemons.proxy("--tracker", lab.tracker(daemons).where, "--lab", path)
    wait_until(lambda: f"{path} is no proxy's credential" in proxy.stderr(), 20, "it is told")


def test_who_came_in_and_who_was_refused_is_in_the_audit_log(lab, daemons):
    ann = lab.join("ann")
    tracker = lab.tracker(daemons)
    with LabProbe(tracker.address) as stranger, LabProbe(tracker.address) as member:
        stranger.hello("rpcsys_p_aaaaaaaa_" + "A" * 43)
        member.hello(ann.token)
        for _ in range(3):
            assert member.ask({"op": "drain", "id": 1, "server": "board"})["error"] == "Forbidden"
    lab.allow('[[allow]]\nwho = ["ann"]\nkeys = ["rpi4"]\n')

    def recorded() -> set[tuple[str, str, str]]:
        with open(lab.path / "audit.jsonl") as file:
            lines = [json.loads(line) for line in file]
        return {(line["who"], line["did"], line.get("result", "")[:20]) for line in lines}

    expected = {
        ("", "login", "this credential is r"),
        ("ann", "login", ""),
        ("ann", "drain", "ann may not do this "),
        ("", "policy", ""),
    }
    wait_until(lambda: expected <= recorded(), 20, "all is recorded")
    with open(lab.path / "audit.jsonl", "rb") as file:
        assert not audit.verify(file).broken
    logged = "the newest hash of the audit log of lab basement is"
    wait_until(lambda: logged in tracker.stderr(), 20, "its newest hash is in the log")


def test_boards_connect_again_after_a_rotation(lab, daemons):
    board = lab.board("rpi4-3")
    tracker = lab.tracker(daemons)
    with LabProbe(tracker.address) as member, LabProbe(tracker.address) as keeper:
        member.hello(board.token)
        keeper.hello(lab.keeper.token)
        assert keeper.ask({"op": "rotate", "id": 1})["ok"]
        assert member.ended()
        assert keeper.ask({"op": "whoami", "id": 2})["ok"]  # people stay
