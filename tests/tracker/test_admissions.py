"""Who gets a secret for deployed modules in a lab, and when it ends: transcripts of a tracker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rpcsys.tracker import admissions, policy
from rpcsys.tracker.admissions import ADMITTED_S
from rpcsys.tracker.events import Allowed, Connected, LabChanged, Received, Send, TrackerStarted
from rpcsys.tracker.lab_view import LabView
from rpcsys.tracker.state import TrackerState
from rpcsys.wire import pinned_keys
from rpcsys.wire.membership import TO_TRACKER
from rpcsys.wire.pinned_keys import PinnedMatchKey
from rpcsys.wire.tokens import HolderKind
from rpcsys.wire.tracker import parse_to_tracker
from tests.tracker.closed_lab import NOW, ClosedLab

PIN = "1f" * 32
RULES = """
[[allow]]
who = ["ann"]
modules = ["head"]
[[allow]]
who = ["bo"]
modules = ["head", "tail-*"]
rights = ["deploy"]
[[allow]]
who = ["mo"]
rights = ["keeper"]
"""
PEOPLE = frozenset(("ann", "bo", "mo"))


class Modules(ClosedLab):
    """A closed lab with one server that has the modules head and secret, and a pin."""

    def __init__(self, rules: str = RULES, *, open_too: bool = False, pin: str = PIN, **registered) -> None:
        self.view = LabView(policy.parse(rules, "basement"), "lab-host:9190", (), open_too, {}, PEOPLE)
        self.state = TrackerState(TrackerStarted(NOW - 100, "run", lab=self.view, secret="2e" * 32))
        self.heard, self.closed, self.now = {}, [], NOW
        self.board = self.come("board-1", HolderKind.BOARD, "rpi4")
        self.register(pin=pin, **registered)

    def register(self, **more) -> list:
        fields = {"op": "register", "id": 1, "key": "rpi4", "name": "board-1", "port": 9090}
        said = self.say(self.board, {**fields, **more})
        modules = [{"name": name, "version": "1"} for name in ("head", "secret")]
        self.say(self.board, {"op": "deployed", "id": 2, "modules": modules})
        return said

    def resolve(self, conn: int, name: str = "head", **more) -> dict:
        return self.say(conn, {"op": "resolve", "id": 3, "name": name, "admit": True, **more})[0]

    def to_deploy(self, conn: int, server: str = "board-1") -> dict:
        return self.say(conn, {"op": "admission", "id": 4, "what": "deploy", "server": server})[0]

    def orders(self) -> list:
        """What the server was told since the last call."""
        heard, self.heard[self.board] = self.heard[self.board], []
        return heard

    def change(self, **view) -> None:
        self.view = replace(self.view, **view)
        self.apply(LabChanged(self.now, self.view))


@pytest.fixture
def lab():
    return Modules()


def secret(answer: dict) -> str:
    (row,) = answer["modules"]
    found = pinned_keys.parse(row["matchkey"])
    assert (found.key, found.pin) == ("rpi4", PIN)
    return found.secret


def test_the_server_is_told_of_a_secret_before_its_client(lab):
    ann = lab.come("ann")
    message = parse_to_tracker({"op": "resolve", "id": 3, "name": "head", "admit": True}, TO_TRACKER)
    told, answered = lab.state.apply(Received(lab.now, ann, message))
    assert (told.conn, answered.conn) == (lab.board, ann)
    order = dict(told.message)
    assert order.pop("id") == 1
    assert order == {
        "op": "admit",
        "secret": secret(answered.message),
        "what": "serve",
        "modules": ["head"],
        "member": "ann",
        "until_s": ADMITTED_S,
    }


def test_a_member_that_asks_again_gets_the_same_secret_until_half_its_time_is_over(lab):
    ann, bo = lab.come("ann"), lab.come("bo")
    first = secret(lab.resolve(ann))
    assert len(lab.orders()) == 1
    assert secret(lab.resolve(lab.come("ann"))) == first
    assert lab.orders() == []
    assert secret(lab.resolve(bo)) != first
    lab.orders()
    lab.wait(ADMITTED_S / 2 + 1)
    assert secret(lab.resolve(ann)) != first
    assert [order["op"] for order in lab.orders()] == ["admit"]


@pytest.mark.parametrize("more", [{"admit": False}, {"name": ""}])
def test_who_only_looks_gets_none(lab, more):
    answer = lab.resolve(lab.come("bo"), **{"name": "head", **more})
    assert [row["name"] for row in answer["modules"]] == ["head"]
    assert not any("matchkey" in row for row in answer["modules"])
    assert lab.orders() == []


def test_a_module_that_the_rules_do_not_name_is_refused(lab):
    answer = lab.resolve(lab.come("ann"), "secret")
    assert answer["error"] == "Forbidden"
    assert "ann may not call module secret" in answer["message"]
    assert lab.orders() == []


def test_one_who_may_deploy_gets_a_secret_for_the_modules_of_his_rules(lab):
    answer = lab.to_deploy(lab.come("bo"))
    (order,) = lab.orders()
    assert (order["what"], order["modules"], order["member"]) == ("deploy", ["head", "tail-*"], "bo")
    assert (answer["host"], answer["port"]) == ("10.0.0.1", 9090)
    assert answer["matchkey"] == PinnedMatchKey("rpi4", PIN, order["secret"]).text
    lab.to_deploy(lab.come("mo"))
    assert lab.orders()[0]["modules"] == ["*"]


def test_a_secret_to_call_is_none_to_deploy(lab):
    bo = lab.come("bo")
    called, deployed = secret(lab.resolve(bo)), lab.to_deploy(bo)["matchkey"]
    assert not deployed.endswith(called)


def test_the_audit_log_has_who_deploys(lab):
    message = parse_to_tracker({"op": "admission", "id": 4, "what": "deploy", "server": "board-1"}, TO_TRACKER)
    actions = lab.state.apply(Received(lab.now, lab.come("bo"), message))
    assert actions[-1] == Allowed(lab.now, "bo", "10.0.0.2", "deploy", "board-1")


def test_the_audit_log_has_what_a_server_serves(lab):
    """Each version once, however often the server tells of its modules."""

    def tell(*versions: str) -> list:
        modules = [{"name": "head", "version": version, "running": len(versions)} for version in versions]
        message = parse_to_tracker({"op": "deployed", "id": 5, "modules": modules}, TO_TRACKER)
        actions = lab.state.apply(Received(lab.now, lab.board, message))
        return [(each.who, each.op, each.on) for each in actions if isinstance(each, Allowed)]

    serve, withdraw = ("board-1", "serve"), ("board-1", "withdraw")
    assert tell("1") == [(*withdraw, "secret 1")]
    assert tell("1") == []
    assert tell("2") == [(*serve, "head 2"), (*withdraw, "head 1")]
    assert tell() == [(*withdraw, "head 2")]


def test_who_may_not_deploy_is_told_so(lab):
    answer = lab.to_deploy(lab.come("ann"))
    assert answer["error"] == "Forbidden"
    assert "it takes the right 'deploy'" in answer["message"]
    rules = '[[allow]]\nwho = ["ann"]\nkeys = ["*"]\nrights = ["deploy"]\n'
    lab.change(access=policy.parse(rules, "basement"))
    assert "no rule of lab basement names a module" in lab.to_deploy(lab.come("ann"))["message"]
    assert lab.orders() == []


def test_an_unknown_server_and_one_without_a_pin_are_refused(lab):
    bo = lab.come("bo")
    assert lab.to_deploy(bo, "board-2")["error"] == "UnknownKey"
    lab.register(pin="")
    assert "takes no modules: start it with --deploy DIR" in lab.to_deploy(bo)["message"]
    assert "matchkey" not in lab.resolve(bo)["modules"][0]
    assert "plain" not in lab.resolve(bo)["modules"][0]


# What ends


def test_new_rules_end_what_they_do_not_allow(lab):
    ann, bo = lab.come("ann"), lab.come("bo")
    lab.resolve(ann)
    lab.resolve(bo)
    lab.to_deploy(bo)
    lab.orders()
    lab.change(access=policy.parse(RULES.replace('"head", "tail-*"', '"head"'), "basement"))
    (over,) = lab.orders()
    assert (over["op"], over["what"], over["member"]) == ("unadmit", "deploy", "bo")
    lab.change(access=policy.parse(RULES.replace('modules = ["head"]', ""), "basement"))
    assert [(over["what"], over["member"]) for over in lab.orders()] == [("serve", "ann")]
    lab.change(access=lab.view.access)
    assert lab.orders() == []


def test_a_membership_that_ends_ends_all_of_it(lab):
    ann = lab.come("ann")
    lab.resolve(ann)
    lab.orders()
    lab.change(people=PEOPLE - {"ann"})
    (over,) = lab.orders()
    assert (over["op"], over["what"], over["modules"], over["member"]) == ("unadmit", "serve", ["head"], "ann")
    assert "do not allow it any more" in over["why"]


def test_what_was_given_by_an_earlier_run_ends_too():
    uses = [("serve", ["head"], "ann"), ("serve", ["head"], "gone"), ("deploy", ["*"], "bo"), ("serve", ["head"], "")]
    given = [{"what": what, "modules": modules, "member": member} for what, modules, member in uses]
    lab = Modules(admitted=given)
    # They come with the answer to the registration.
    lab.heard[lab.board] = []
    said = lab.register(admitted=given)
    assert said[0]["ok"]
    assert [(over["op"], over["what"], over["member"]) for over in said[1:]] == [
        ("unadmit", "serve", "gone"),
        ("unadmit", "deploy", "bo"),
        ("unadmit", "serve", ""),
    ]
    lab.change(people=PEOPLE - {"ann"})
    assert [over["member"] for over in lab.orders()] == ["ann"]


def test_a_secret_of_an_earlier_run_is_not_given_again():
    lab = Modules(admitted=[{"what": "serve", "modules": ["head"], "member": "ann"}])
    assert len(secret(lab.resolve(lab.come("ann")))) == 32
    assert [order["op"] for order in lab.orders()] == ["admit"]


def test_so_many_uses_are_known(lab, monkeypatch):
    monkeypatch.setattr(admissions, "MOST", 2)
    ann, bo, mo = (lab.come(name) for name in ("ann", "bo", "mo"))
    for conn in (ann, bo, ann, mo):
        lab.resolve(conn)
    orders = lab.orders()
    assert [(order["op"], order["member"]) for order in orders] == [
        *(("admit", "ann"), ("admit", "bo"), ("admit", "mo")),
        ("unadmit", "bo"),
    ]


def test_a_server_that_comes_again_is_told_anew(lab):
    ann = lab.come("ann")
    first = secret(lab.resolve(ann))
    lab.register(pin=PIN)
    lab.orders()
    assert secret(lab.resolve(ann)) != first
    assert len(lab.orders()) == 1


# A lab that moves


def test_in_an_open_lab_others_get_secrets_until_it_is_closed():
    lab = Modules(open_too=True)
    other = lab.connect()
    secret(lab.resolve(other))
    assert lab.to_deploy(other)["matchkey"]
    assert [(order["member"], order["modules"]) for order in lab.orders()] == [("", ["head"]), ("", ["*"])]
    lab.change(open=False)
    assert [(order["op"], order["what"]) for order in lab.orders()] == [("unadmit", "serve"), ("unadmit", "deploy")]
    assert lab.resolve(other)["error"] == "Unauthorized"


def test_a_member_is_told_of_a_server_that_has_not_moved():
    lab = Modules(open_too=True, pin="")
    old = lab.connect()
    lab.say(old, {"op": "register", "id": 1, "key": "rpi4", "name": "old", "port": 9091})
    lab.say(old, {"op": "deployed", "id": 2, "modules": [{"name": "head", "version": "1"}], "key": ""})
    rows = {row["server"]: row for row in lab.resolve(lab.come("ann"))["modules"]}
    assert rows["old"]["plain"] is True
    assert "plain" not in rows["board-1"]
    assert not any("plain" in row for row in lab.resolve(lab.connect())["modules"])


def test_without_a_lab_everybody_is_told_where_to_deploy():
    state = TrackerState(TrackerStarted(NOW, "run"))
    heard = {}

    def say(conn, message):
        for action in state.apply(Received(NOW, conn, parse_to_tracker(message))):
            if isinstance(action, Send):
                heard[action.conn] = action.message
        return heard[conn]

    for conn in (1, 2):
        state.apply(Connected(NOW, conn, f"10.0.0.{conn}", "10.0.0.9"))
    say(1, {"op": "register", "id": 1, "key": "rpi4", "name": "board", "port": 9090})
    say(1, {"op": "deployed", "id": 2, "modules": [{"name": "head", "version": "1"}]})
    answer = say(2, {"op": "admission", "id": 3, "what": "deploy", "server": "board"})
    assert answer == {"id": 3, "ok": True, "host": "10.0.0.1", "port": 9090, "key": ""}
    assert "matchkey" not in say(2, {"op": "resolve", "id": 4, "name": "head", "admit": True})["modules"][0]
