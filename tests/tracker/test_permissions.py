"""What each message to a lab's tracker takes: every operation without a credential, and with each right missing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rpcsys.tracker import permissions, policy
from rpcsys.tracker.access import Right
from rpcsys.tracker.entities import LeaseRecord, Peer, SlotOffer
from rpcsys.tracker.events import TrackerStarted
from rpcsys.tracker.lab_view import LabView, Member
from rpcsys.tracker.labels import facts_of_key
from rpcsys.tracker.records import Records
from rpcsys.wire import control, membership, results, tracker
from rpcsys.wire.tokens import HolderKind, hash_of

KEEPERS_RULE = '[[allow]]\nwho = ["mo"]\nrights = ["keeper"]\n'
EVERYTHING = '[[allow]]\nwho = ["ann"]\nkeys = ["*"]\nmodules = ["*"]\nrights = ["{}"]\n'
#: An example of each message, and the right that it takes: None for none, "board" for a board, "never".
MESSAGES: list[tuple[Any, Any]] = [
    (tracker.Ping(), None),
    (tracker.Stop("x"), "never"),
    (tracker.Put("rpi4", 9090, "rpi4:1"), "board"),
    (tracker.GetPending(), "machine"),
    (tracker.UpdateInfo("server:rpi4", None, 9090), "board"),
    (tracker.TvmRequest("rpi4"), "key"),
    (tracker.TvmSummary(), Right.SEE),
    (control.Via(("10.0.0.9", 1), (None, 9090)), None),
    (control.Answer(1, True), None),
    (control.Request(1, "rpi4"), "key"),
    (control.Cancel(1, 2), "member"),
    (control.Renew(1, "lease"), "member"),
    (control.Release(1, "lease"), "member"),
    (control.Resolve(1, "head"), "module"),
    (control.AskAdmission(1, "deploy", "rpi4-3"), Right.DEPLOY),
    (control.Summary(1), Right.SEE),
    (control.History(1), Right.SEE),
    (control.Usage(1), Right.SEE),
    (control.Why(1, None, "rpi4"), Right.SEE),
    (control.Drain(1, "x"), Right.DRAIN),
    (control.Enable(1, "x"), Right.DRAIN),
    (control.EndLease(1, "x"), Right.END),
    (control.Register(1, "rpi4", "rpi4-3"), "board"),
    (control.LeaseStarted(1, "x", 1), "board"),
    (control.LeaseEnded(1, "x", 1, "closed"), "board"),
    (control.Health(1), "board"),
    (control.CanaryRun(1, "builtin"), "board"),
    (control.Deployed(1), "board"),
    (results.FindResults(1, ("0" * 64,)), "member"),
    (results.KeepResults(1, {"0" * 64: [1.0]}), "member"),
    (membership.WhoAmI(1), "member"),
    (membership.ListMembers(1), Right.SEE),
    (membership.Invite(1, "bo"), Right.KEEPER),
    (membership.Enrol(1, "rpi4-4", HolderKind.BOARD, hash_of("x")), Right.ENROL),
    (membership.Revoke(1, "ann"), Right.KEEPER),
    (membership.RenewToken(1, "ann"), Right.KEEPER),
    (membership.ReplaceToken(1, hash_of("x")), "member"),
    (membership.Rotate(1), Right.KEEPER),
    (membership.SetOpen(1, True), Right.KEEPER),
    (membership.Audit(1), Right.AUDIT),
    (membership.ReadPage(1, "/"), Right.SEE),
]
IDS = [type(message).__name__ for message, _ in MESSAGES]


def member(name: str, kind: HolderKind = HolderKind.PERSON, keys: tuple[str, ...] = ()) -> Member:
    return Member(name, kind, "aaaaaaaa", "", None, keys, (), 0.0, None, None, None)


BOARD = member("rpi4-3", HolderKind.BOARD, ("rpi4",))


def lab(rules: str, *, open_too: bool = False) -> Records:
    machines = {"rpi4-3": HolderKind.BOARD, "gate": HolderKind.PROXY}
    view = LabView(policy.parse(rules, "basement"), "lab-host:9190", (), open_too, machines)
    return Records(TrackerStarted(0.0, "run", lab=view))


def peer(who: Member | None = None, address: str = "203.0.113.9") -> Peer:
    found = Peer(1, address, "10.0.0.1")
    found.member = who
    if who is not None:
        found.user = who.name
    return found


def test_every_message_to_the_tracker_has_a_rule_and_an_example():
    known = {*tracker._TVM.keys()}
    of_tvm = {type(message) for message, _ in MESSAGES if isinstance(message, tracker.TvmMessage)}
    assert {kind.code for kind in of_tvm} == known
    expected = {*of_tvm, control.Via, control.Answer, *membership.TO_TRACKER.values()}
    assert set(permissions.TAKES) == expected == {type(message) for message, _ in MESSAGES}


def test_a_message_without_a_rule_is_refused():
    @dataclasses.dataclass
    class New:
        id: int = 1

    assert "no rule" in permissions.refusal(lab(KEEPERS_RULE), peer(member("mo")), New())


@pytest.mark.parametrize(("message", "takes"), MESSAGES, ids=IDS)
def test_without_a_credential_nothing_is_done(message, takes):
    refused = permissions.refusal(lab(KEEPERS_RULE), peer(), message)
    harmless = (tracker.Ping, tracker.Put, tracker.GetPending, tracker.UpdateInfo, control.Via)
    if isinstance(message, harmless):  # the service lets TVM's servers of the keeper's networks come so far
        assert refused == ""
    else:
        assert refused


@pytest.mark.parametrize(("message", "takes"), MESSAGES, ids=IDS)
def test_a_member_lacks_one_right_or_has_one(message, takes):
    if not isinstance(takes, Right):
        return
    for held in Right:
        refused = permissions.refusal(lab(EVERYTHING.format(held.value)), peer(member("ann")), message)
        assert bool(refused) == (held not in (takes, Right.KEEPER)), (held, refused)
        if refused:
            assert "ann may not" in refused


@pytest.mark.parametrize(("message", "takes"), MESSAGES, ids=IDS)
def test_a_member_without_any_rule_may_do_what_is_its_own(message, takes):
    refused = permissions.refusal(lab(KEEPERS_RULE), peer(member("ann")), message)
    assert bool(refused) == (takes not in (None, "member", "machine")), refused


@pytest.mark.parametrize(("message", "takes"), MESSAGES, ids=IDS)
def test_a_keeper_may_do_all_that_a_person_does(message, takes):
    refused = permissions.refusal(lab(KEEPERS_RULE), peer(member("mo")), message)
    assert bool(refused) == (takes in ("board", "never")), refused


@pytest.mark.parametrize(("message", "takes"), MESSAGES, ids=IDS)
def test_a_board_may_do_what_boards_do(message, takes):
    rules = '[[allow]]\nwho = ["*"]\nkeys = ["*"]\nmodules = ["*"]\nrights = ["keeper"]\n'
    refused = permissions.refusal(lab(rules), peer(BOARD), message)
    assert bool(refused) == (
        not (takes in ("board", None, "machine") or type(message) in (membership.WhoAmI, membership.ReplaceToken))
    ), refused


@pytest.mark.parametrize(
    "message",
    [
        tracker.Put("jetson", 9090, "jetson:1"),
        tracker.UpdateInfo("server:jetson", None, 9090),
        tracker.UpdateInfo("server:proxy[rpi4,jetson]", None, 9090),
        control.Register(1, "jetson", "rpi4-3"),
        control.Register(1, "rpi4", "rpi4-4"),
    ],
    ids=repr,
)
def test_a_board_is_no_other_board(message):
    assert permissions.refusal(lab(KEEPERS_RULE), peer(BOARD), message)


@pytest.mark.parametrize("kind", [HolderKind.BOARD, HolderKind.PROXY])
def test_the_right_to_enrol_is_for_boards_and_proxies(kind):
    records, ann = lab(EVERYTHING.format("enrol")), peer(member("ann"))
    for message in (
        membership.Enrol(1, "new", kind, hash_of("x")),
        membership.Invite(1, "new", kind),
        membership.Revoke(1, "rpi4-3"),
        membership.RenewToken(1, "gate"),
    ):
        assert permissions.refusal(records, ann, message) == ""
    for message in (
        membership.Enrol(1, "new", HolderKind.PERSON, hash_of("x")),
        membership.Invite(1, "new"),
        membership.Revoke(1, "mo"),
        membership.RenewToken(1, membership.EVERYONE),
    ):
        assert permissions.refusal(records, ann, message)


def test_ones_own_lease_may_be_ended_without_the_right():
    records = lab(EVERYTHING.format("see"))
    lease = LeaseRecord("run-1", 1, "rpi4", None, "board", None, "ann", "10.0.0.5", 0.0, None)
    records.add_lease(lease)
    assert permissions.refusal(records, peer(member("ann")), control.EndLease(1, "run-1")) == ""
    assert permissions.refusal(records, peer(member("bo")), control.EndLease(1, "run-1"))


def test_leases_at_once_count_those_that_wait():
    records = lab('[[allow]]\nwho = ["ann"]\nkeys = ["rpi4"]\nat_once = 2\n')
    ann = peer(member("ann"))
    assert permissions.refusal(records, ann, control.Request(1, "rpi4", count=2)) == ""
    assert "2 leases at once, and has 0" in permissions.refusal(records, ann, control.Request(1, "rpi4", count=3))
    records.shares.waits(0.0, "ann")
    assert "2 leases at once, and has 1" in permissions.refusal(records, ann, control.Request(1, "rpi4", count=2))


def test_a_device_of_any_key_takes_a_rule_for_every_key():
    wanted = control.Request(1, None, labels={"arch": "aarch64"})
    ann = peer(member("ann"))
    refused = permissions.refusal(lab('[[allow]]\nwho = ["ann"]\nkeys = ["rpi4"]\n'), ann, wanted)
    assert refused == "ann may not lease a device of any key: name one (rules of lab basement allow: rpi4)"
    assert permissions.refusal(lab('[[allow]]\nwho = ["ann"]\nkeys = ["*"]\n'), ann, wanted) == ""


def test_the_longest_lease_is_that_of_the_rules():
    records = lab('[[allow]]\nwho = ["ann"]\nkeys = ["rpi4"]\nsession = "2h"\n[[allow]]\nwho = ["bo"]\nkeys = ["*"]\n')
    assert permissions.longest(records, peer(member("ann")), "rpi4") == 7200
    assert permissions.longest(records, peer(member("bo")), "rpi4") is None
    assert permissions.longest(lab(KEEPERS_RULE, open_too=True), peer(), "rpi4") is None


def test_tvms_clients_have_rules_of_their_own():
    records = lab('[[allow]]\nwho = ["tvm"]\nkeys = ["rpi4"]\n[tvm]\nfrom = ["203.0.113.0/24"]\n')
    assert permissions.refusal(records, peer(), tracker.TvmRequest("rpi4")) == ""
    assert permissions.refusal(records, peer(), tracker.TvmRequest("jetson"))
    assert permissions.refusal(records, peer(), tracker.TvmSummary())


@pytest.mark.parametrize(("message", "takes"), MESSAGES, ids=IDS)
def test_an_open_lab_lets_everybody_do_what_a_tracker_without_one_does(message, takes):
    refused = permissions.refusal(lab(KEEPERS_RULE, open_too=True), peer(), message)
    assert bool(refused) == (takes == "never" or type(message) in membership.MESSAGES)


@pytest.mark.parametrize(("message", "takes"), MESSAGES, ids=IDS)
def test_without_a_lab_there_are_no_rules(message, takes):
    assert permissions.refusal(Records(TrackerStarted(0.0, "run")), peer(), message) == ""


def offer_of(key: str = "rpi4") -> SlotOffer:
    return SlotOffer(2, key, f"{key}:1", "10.0.0.8", 9090, facts_of_key(key))


MODELS_ONLY = (
    '[[allow]]\nwho = ["guest"]\nkeys = ["rpi4"]\ncode = false\n[[allow]]\nwho = ["ann", "tvm"]\nkeys = ["*"]\n'
)


@pytest.mark.parametrize(
    ("who", "server", "taken", "granted"),
    [
        (member("ann"), BOARD, {"code": True}, {}),
        (member("guest"), BOARD, {"code": False}, {}),
        (member("ann"), None, {"code": True}, {"plain": True}),  # a TVM server of an allowed network
        (member("ann"), member("gate", HolderKind.PROXY), {"code": True}, {"plain": True}),  # one behind a proxy
        (None, BOARD, {"code": True, "plain": True}, {"plain": True}),
    ],
)
def test_server_and_client_are_told_what_a_session_may(who, server, taken, granted):
    records = lab(MODELS_ONLY)
    fields = permissions.of_lease(records.lab, peer(who), peer(server), offer_of())
    assert (fields.taken, fields.granted) == (taken, granted)


def test_who_may_load_models_only_opens_no_session_of_tvm():
    records, guest = lab(MODELS_ONLY), peer(member("guest"))
    assert permissions.refusal(records, guest, control.Request(1, "rpi4")) == ""
    assert "may load models only" in permissions.refusal(records, guest, tracker.TvmRequest("rpi4"))
    assert not permissions.models_only(records, peer(member("ann")), "rpi4")
    assert not permissions.models_only(lab(MODELS_ONLY, open_too=True), peer(), "rpi4")
