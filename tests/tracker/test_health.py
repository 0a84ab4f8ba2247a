"""Which servers are offered, as transcripts."""

import pytest

from rpcsys.tracker import events
from rpcsys.tracker.health import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_ABSENT, MAX_MISSED
from rpcsys.tracker.leases import AWAY_S
from rpcsys.tracker.transitions import FAILURES
from tests.tracker.transcripts import Scene


class SessionRunner:
    """A server, and sessions of clients on it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.server = scene.server()
        self.count = 0

    def session(self, outcome="closed", fault="", started=True, address="10.0.0.5", problem="", confirmed=True):
        """One lease from offer to end; False if the offer is not granted."""
        scene, self.count = self.scene, self.count + 1
        client = scene.client(address=address)
        scene.put(self.server, f"rpi4:{self.count}")
        scene.hear(self.server)
        answer = scene.request(client, wait_timeout=0)
        if "leases" not in answer:
            scene.wait(0)
            return False
        lease = {"lease": answer["leases"][0]["lease"], "epoch": answer["leases"][0]["epoch"]}
        if confirmed:
            (taken,) = [told for told in scene.hear(self.server) if type(told) is dict and told.get("op") == "taken"]
            scene.say(self.server, {"id": taken["id"], "ok": True})
        if started:
            scene.ask(self.server, "lease_started", **lease)
        if problem:
            scene.ask(client, "release", 2, lease=lease["lease"], problem=problem)
        scene.ask(self.server, "lease_ended", **lease, outcome=outcome, fault=fault)
        scene.leave(client)
        return True

    @property
    def row(self):
        (row,) = self.scene.summary()["servers"]
        return row


@pytest.fixture
def runner(scene):
    return SessionRunner(scene)


def test_failures_in_a_row_set_a_server_aside_until_its_trial(scene, runner):
    for _ in range(FAILURES):
        assert runner.session("crashed", fault="no process")
    row = runner.row
    assert (row["state"], row["reason"], row["until_s"]) == ("set aside", "no process", FIRST_PAUSE_S)
    assert not runner.session()
    assert scene.queue() == (0, 0)
    (record,) = scene.recorded("set_aside")
    assert (record["failures"], record["pause_s"]) == (FAILURES, FIRST_PAUSE_S)
    scene.wait(FIRST_PAUSE_S)
    assert (runner.row["state"], scene.queue()) == ("on trial", (1, 0))
    assert runner.session()
    assert runner.row["state"] == "ok"
    assert scene.recorded("trusted") == [{"server": "board"}]
    assert scene.state.records.conditions == {}


def test_pauses_grow_while_trials_fail_and_begin_anew_after_a_session_that_works(scene, runner):
    for _ in range(FAILURES):
        runner.session("crashed", fault="x")
    pauses = []
    for _ in range(10):
        pauses.append(runner.row["until_s"])
        scene.wait(pauses[-1])
        assert runner.session("crashed", fault="x")
    assert pauses[:3] == [30, 60, 120]
    assert pauses[-1] == LONGEST_PAUSE_S
    scene.wait(LONGEST_PAUSE_S)
    runner.session()
    for _ in range(FAILURES):
        assert runner.session("crashed", fault="x")
    assert runner.row["until_s"] == FIRST_PAUSE_S


@pytest.mark.parametrize("outcome", ["closed", "lost", "timeout", "crashed", "memory", "ended"])
def test_failures_of_user_code_do_not_count(runner, outcome):
    for _ in range(20):
        assert runner.session(outcome)
    assert runner.row["state"] == "ok"


def test_a_session_that_works_clears_earlier_failures(runner):
    for _ in range(4 * FAILURES):
        assert runner.session("crashed", fault="x")
        assert runner.session()
    assert runner.row["state"] == "ok"


def test_a_refused_client_counts_as_a_failure(runner):
    for _ in range(FAILURES):
        assert runner.session("unused", started=False, problem="connection refused")
    assert runner.row["state"] == "set aside"
    assert "connection refused" in runner.row["reason"]


def test_problems_with_a_lease_that_the_server_has_not_confirmed_do_not_count(runner):
    for _ in range(4 * FAILURES):
        assert runner.session("unused", started=False, problem="connection refused", confirmed=False)
    assert runner.row["state"] == "ok"


def test_addresses_of_clients_with_problems_are_bounded():
    scene = Scene()
    runner = SessionRunner(scene)
    scene.state.records.missed.update((f"address {number}", "another board") for number in range(MAX_MISSED))
    for number in range(3):
        runner.session("unused", started=False, problem="no route", address=f"10.0.1.{number}")
    assert len(scene.state.records.missed) == MAX_MISSED


def test_a_client_that_reaches_no_server_counts_once(scene):
    runners = []
    for number in range(4):
        runner = SessionRunner.__new__(SessionRunner)
        runner.scene, runner.count, runner.server = (scene, 100 * number, scene.server(name=f"s{number}", port=number))
        runners.append(runner)
    for _ in range(10):
        for runner in runners:
            assert (
                runner.session("unused", started=False, address="10.0.0.66", problem="no route") or runner is runners[0]
            )
    states = {row["name"]: row["state"] for row in scene.summary()["servers"]}
    assert states == {"s0": "set aside", "s1": "ok", "s2": "ok", "s3": "ok"}


def test_a_condition_survives_a_reconnect(scene, runner):
    for _ in range(FAILURES):
        runner.session("crashed", fault="x")
    scene.leave(runner.server)
    runner.server = scene.server()
    assert not runner.session()
    assert runner.row["state"] == "set aside"
    scene.wait(FIRST_PAUSE_S)
    assert runner.session()


def test_drain_and_enable(scene, runner):
    client, waits = scene.client("bob"), scene.client("eve")
    scene.put(runner.server, "rpi4:old")
    assert [scene.ask(client, "drain", server="board")[0]["changed"] for _ in range(2)] == [True, False]
    assert (runner.row["state"], scene.queue()) == ("drained", (0, 0))
    scene.request(waits)
    assert scene.granted(waits) == []
    scene.leave(runner.server)
    runner.server = scene.server()
    scene.put(runner.server, "rpi4:1")
    assert scene.granted(waits) == []
    assert scene.ask(client, "enable", server="board")[0]["changed"]
    assert scene.granted(waits) == ["rpi4:1"]
    assert not scene.ask(client, "enable", server="board")[0]["changed"]
    assert scene.recorded("drained") == [{"server": "board", "by": "bob"}]
    assert scene.recorded("enabled") == [{"server": "board", "by": "bob"}]
    assert scene.ask(client, "enable", server="bord")[0]["error"] == "BadRequest"


def test_a_running_session_goes_on_during_a_drain(scene, runner):
    client = scene.client()
    scene.put(runner.server, "rpi4:1")
    scene.request(client)
    scene.ask(scene.client(), "drain", server="board")
    assert len(scene.summary()["leases"]) == 1
    assert not any(message.get("op") == "end" for message in scene.hear(runner.server))


def test_tvms_own_servers_can_be_drained(scene):
    server, client = scene.tvm_server(port=9090), scene.connect()
    scene.put(server, "rpi4:1")
    assert scene.ask(scene.client(), "drain", server="10.0.0.7:9090")[0]["ok"]
    assert scene.say(client, [4, "rpi4", "", 1]) == []


def test_an_unhealthy_server_is_not_offered(scene, runner):
    scene.put(runner.server, "rpi4:1")
    assert scene.ask(runner.server, "health", problem="too hot")[0]["ok"]
    assert (runner.row["state"], runner.row["reason"], scene.queue()) == ("unhealthy", "too hot", (0, 0))
    scene.ask(runner.server, "health", problem="")
    assert (runner.row["state"], scene.queue()) == ("ok", (1, 0))
    scene.ask(runner.server, "health", problem="too hot")
    scene.leave(runner.server)
    assert scene.state.records.conditions == {}, "it says so again when it is back"
    assert [record.kind for record in scene.entries if record.kind.endswith("healthy")] == [
        "unhealthy",
        "healthy",
        "unhealthy",
    ]


def test_a_server_is_offered_again_when_all_its_problems_are_over(scene, runner):
    client = scene.client()
    scene.put(runner.server, "rpi4:1")
    scene.ask(client, "drain", server="board")
    scene.ask(runner.server, "health", problem="too hot")
    scene.ask(client, "enable", server="board")
    assert scene.queue() == (0, 0)
    scene.ask(runner.server, "health", problem="")
    assert scene.queue() == (1, 0)


def test_a_server_cannot_take_over_a_lease_of_a_tvm_server(scene):
    client, silent = scene.client(), scene.connect("10.0.0.7")
    scene.put(silent, "rpi4:1")
    (lease,) = scene.request(client, 1)["leases"]
    board = scene.server(running=[{"lease": lease["lease"], "epoch": lease["epoch"], "since_s": 1.0}])
    scene.leave(board)
    assert [row["state"] for row in scene.summary()["leases"]] == ["silent"]
    scene.leave(silent)
    assert scene.recorded("over")[-1]["lease"] == lease["lease"]


def test_conditions_of_servers_that_have_left_are_bounded(scene):
    """The one that left first is dropped; those of connected servers stay."""
    keeper = scene.client("keeper")
    scene.server(name="here")
    scene.ask(keeper, "drain", server="here")
    for number in range(MAX_ABSENT + 10):
        conn = scene.server(name=f"s{number}", port=number + 1)
        scene.ask(keeper, "drain", server=f"s{number}")
        scene.leave(conn)
    assert len(scene.state.records.conditions) == MAX_ABSENT + 1
    assert {"here", "s10"} <= set(scene.state.records.conditions)
    assert "s9" not in scene.state.records.conditions
    assert scene.recorded("forgotten") == [{"server": f"s{number}"} for number in range(10)]


def test_a_server_that_changes_its_name_leaves_no_earlier_name(scene):
    """The records of its earlier names end."""
    conn = scene.server(name="s0")
    for number in range(1, 4):
        scene.ask(conn, "register", number, key="rpi4", name=f"s{number}", port=9090)
    assert [told["server"] for told in scene.recorded("joined")] == ["s0", "s1", "s2", "s3"]
    assert [told["server"] for told in scene.recorded("gone")] == ["s0", "s1", "s2"]


def test_a_pause_and_a_lease_may_end_in_the_same_step(scene):
    """After a pause of the tracker both are due; the lease's end undoes the server's pause."""
    runner = SessionRunner(scene)
    client = scene.client("bob")
    scene.put(runner.server, "rpi4:0")
    (lease,) = scene.request(client)["leases"]
    scene.ask(runner.server, "lease_started", lease=lease["lease"], epoch=lease["epoch"])
    for _ in range(FAILURES):
        assert runner.session("crashed", fault="no process")
    scene.wait(FIRST_PAUSE_S - AWAY_S - 1)
    scene.leave(runner.server)
    scene.now += AWAY_S + 2
    scene.apply(events.TimePassed(scene.now))
    assert (scene.state.records.leases, scene.state.records.conditions) == ({}, {})
