"""Members that the tracker lets use deployed modules, as transcripts of a whole server."""

from __future__ import annotations

import pytest

from rpcsys.link.openings import OPENING_S
from rpcsys.server.models.store import Version
from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import admitted
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.admission import NOT_CLEAR
from rpcsys.server.supervisor.admitted import EARLY_S, LONGEST_S
from rpcsys.server.supervisor.fronts import MAX_UNTAKEN
from tests.server.transcripts import FRONT, NAME, SECRETS, SEED, kinds, modules_server, only

FIRST, SECOND = SECRETS
HEAD = Version("head", "0001-a", "head.so", "00")
SERVE, DEPLOY = "serve", "deploy"


@pytest.fixture
def script():
    """A server that serves head, from the child 2."""
    script = served(modules_server())
    yield script
    script.replay()


def served(script):
    script.post(ev.Catalogue, (HEAD,))
    (host,) = script.state.deployments.hosts.by_child
    script.post(ev.ChildReady, host)
    script.post(ev.Loaded, host)
    return script


def host_of(script):
    (host,) = script.state.deployments.hosts.by_child
    return host


def admit(script, secret=FIRST, what=SERVE, modules=("head",), member="ann", until_s=600.0):
    return script.post(ev.Admitted, secret, what, modules, member, until_s)


def unadmit(script, what=SERVE, modules=("head",), member="ann"):
    return script.post(ev.Unadmitted, what, modules, member, "it is over")


def front_of(script):
    """The front, which is made for its first client."""
    fronts = [number for number, child in script.state.processes.children.items() if child.kind is ChildKind.FRONT]
    return fronts[0] if fronts else None


def greet(script, conn):
    """A client that has said the public name, at the front; the actions."""
    actions = script.greet(conn, FRONT)
    made = [each.child for each in only(actions, do.Spawn) if each.kind is ChildKind.FRONT]
    return actions + [more for child in made for more in script.post(ev.ChildReady, child)]


def say(script, conn, secret=FIRST, serve="head"):
    greet(script, conn)
    return script.post(ev.Secured, conn, "rpcsys/1", serve, None, f"{FRONT}-{secret}")


def test_the_front_takes_any_secret_behind_the_public_name(script):
    actions = greet(script, 6)
    assert only(actions, do.Secure) == [do.Secure(front_of(script), 6, FRONT, SEED, True)]


def test_a_member_is_handed_to_its_module(script):
    admit(script)
    assert say(script, 6) == [do.Hand(host_of(script), 6, "peer6", True, False)]
    assert say(script, 7) == [do.Hand(host_of(script), 7, "peer7", True, False)]


def test_one_who_deploys_gets_a_deployer_for_its_modules(script):
    admit(script, what=DEPLOY, modules=("head", "tail-*"))
    (spawned,) = say(script, 6, serve="")
    assert spawned.kind is ChildKind.DEPLOYER
    assert script.post(ev.ChildReady, spawned.child) == [do.BeDeployer(spawned.child, 6, "peer6", ("head", "tail-*"))]


@pytest.mark.parametrize(
    ("what", "modules", "serve"),
    [(SERVE, ("head",), "tail"), (SERVE, ("head",), ""), (DEPLOY, ("*",), "head"), (SERVE, ("head",), None),
     (DEPLOY, ("*",), None), (SERVE, ("*",), "head")],
)  # fmt: skip
def test_a_secret_is_good_for_nothing_else(script, what, modules, serve):
    admit(script, what=what, modules=modules)
    assert say(script, 6, serve=serve) == [do.Refuse(6, "mismatch")]
    assert script.state.admission.unauthorized["credential"] == 1


def test_a_client_that_is_faster_than_the_tracker_waits(script):
    assert say(script, 6) == []
    assert say(script, 7, SECOND) == []
    assert admit(script) == [do.Hand(host_of(script), 6, "peer6", True, False)]
    assert script.tick(EARLY_S - 0.1) == []
    assert script.tick(0.2) == [do.Refuse(7, "mismatch")]
    assert admit(script, SECOND) == []


def test_a_client_that_waits_may_hang_up_or_be_cut(script):
    for conn, event in ((6, ev.HungUp), (7, ev.FrontClosed)):
        say(script, conn)
        assert script.post(event, conn) == [do.Drop(conn)]
    assert admit(script) == []


def test_what_no_front_has_checked_is_refused(script):
    admit(script)
    assert script.greet(6, f"{FRONT}-{FIRST}") == [do.Refuse(6, "mismatch")]
    assert script.greet(7, NAME) == [do.Refuse(7, "mismatch")]
    assert script.greet(8, FRONT, session=None) == [do.Refuse(8, "mismatch")]
    for name in ("head", ""):
        assert script.greet(9, FRONT, serve=name) == [do.TurnAway(9, "ServerRefused", NOT_CLEAR, True)]
    greet(script, 10)
    assert do.Drop(10) in script.tick(OPENING_S + 0.1)


def test_a_secret_ends_with_its_time(script):
    admit(script, until_s=60.0)
    script.tick(61.0)
    say(script, 6)
    assert script.tick(EARLY_S + 0.1) == [do.Refuse(6, "mismatch")]
    admit(script, until_s=10.0 * LONGEST_S)
    script.tick(LONGEST_S + 1.0)
    say(script, 7)
    assert script.tick(EARLY_S + 0.1) == [do.Refuse(7, "mismatch")]


def test_what_the_tracker_ends_is_ended_and_said(script):
    admit(script)
    admit(script, SECOND, member="bo")
    for conn, secret in ((6, FIRST), (7, SECOND), (8, FIRST)):
        say(script, conn, secret)
    front = front_of(script)
    assert unadmit(script) == [do.EndSecured(front, (6, 8), f"{FRONT}-{FIRST}", "it is over")]
    script.post(ev.FrontClosed, 6)
    assert unadmit(script) == [do.EndSecured(front, (8,), f"{FRONT}-{FIRST}", "it is over")]
    say(script, 9)
    assert script.tick(EARLY_S + 0.1) == [do.Refuse(9, "mismatch")]
    assert unadmit(script, member="nobody") == []


def test_the_next_link_is_told_who_is_there(script):
    admit(script, until_s=5.0)
    admit(script, SECOND, DEPLOY, ("*",), "mo", 600.0)
    say(script, 6)
    script.tick(6.0)
    script.post(ev.LinkDown, "gone")
    script.tick(3.0)
    assert only(script.post(ev.LinkUp, True), do.RegisterServer) == [
        do.RegisterServer((), ((SERVE, ("head",), "ann"), (DEPLOY, ("*",), "mo")))
    ]


def test_a_dead_front_ends_all_that_it_had(script):
    admit(script)
    say(script, 6)
    say(script, 7, SECOND)
    assert do.Drop(7) in script.post(ev.ChildDead, front_of(script), 1)
    assert unadmit(script) == []
    assert admit(script, SECOND) == []


def test_a_front_has_so_many_orders_at_once_as_its_socket_holds(script):
    greet(script, 1000)
    front = front_of(script)
    for conn in range(1001, 1000 + MAX_UNTAKEN):
        assert script.greet(conn, FRONT) == [do.Secure(front, conn, FRONT, SEED, True)]
    assert script.greet(2000, FRONT) == script.greet(2001, FRONT) == []
    admit(script)
    script.post(ev.Secured, 1000, "rpcsys/1", "head", None, f"{FRONT}-{FIRST}")
    assert unadmit(script) == []
    assert script.post(ev.FrontTook) == [do.EndSecured(front, (1000,), f"{FRONT}-{FIRST}", "it is over")]
    assert script.post(ev.FrontTook) == [do.Secure(front, 2000, FRONT, SEED, True)]
    actions = script.child_dies(front)
    (made,) = [each.child for each in only(actions, do.Spawn)]
    secured = only(script.post(ev.ChildReady, made), do.Secure)
    assert secured == [do.Secure(made, 2001, FRONT, SEED, True)]


def test_secrets_are_bounded(monkeypatch):
    script = served(modules_server())
    monkeypatch.setattr(admitted, "MOST", 2)
    for number in range(3):
        admit(script, f"{number:032x}")
    assert only(say(script, 6, f"{1:032x}"), do.Hand)
    assert say(script, 7, f"{0:032x}") == []
    script.tick(EARLY_S + 0.1)


def test_in_an_open_lab_modules_are_served_in_the_clear_too():
    script = served(modules_server())
    script.post(ev.LinkDown, "gone")
    script.tick(3.0)
    script.post(ev.LinkUp, True, True)
    script.post(ev.Registered)
    assert script.greet(6, "", serve="head") == [do.Hand(host_of(script), 6, "peer6", True, False)]
    script.post(ev.LinkDown, "gone")
    assert kinds(script.greet(7, "", serve="head")) == [do.Hand]
    script.tick(3.0)
    script.post(ev.LinkUp, True, False)
    assert kinds(script.greet(8, "", serve="head")) == [do.TurnAway]
    script.replay()


def test_connections_wait_at_proxies_for_the_first_module_too():
    script = modules_server(proxies=("127.0.0.1:9090",), deployed_key=FRONT)
    parked = [action for action in script.out if isinstance(action, do.Park) and action.key == FRONT]
    assert parked == [do.Park(parked[0].number, 0, FRONT, True)]
    script.post(ev.Parked, parked[0].number)
    admit(script, what=DEPLOY, modules=("*",))
    script.post(ev.Opened, 6, "peer6", "client", FRONT, "rpcsys/1", parked=parked[0].number)
    script.post(ev.ChildReady, front_of(script))
    (spawned,) = [
        each for each in script.post(ev.Secured, 6, "rpcsys/1", "", None, f"{FRONT}-{FIRST}") if type(each) is do.Spawn
    ]
    assert spawned.kind is ChildKind.DEPLOYER
    script.replay()


def test_a_server_that_stops_lets_nobody_in(script):
    admit(script)
    greet(script, 6)
    assert do.Drop(6) in script.post(ev.StopAsked)
    assert script.post(ev.Secured, 6, "rpcsys/1", "head", None, f"{FRONT}-{FIRST}") == [do.Drop(6)]
