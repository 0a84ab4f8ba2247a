"""Every query command with a tracker that sends invalid answers, or more fields than this version knows."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcsys.board import lifecycle
from rpcsys.cli import board
from rpcsys.cli.commands import run_group
from rpcsys.client import listings as shapes
from rpcsys.client.tracker import PLACES, connect_tracker
from rpcsys.errors import RpcsysError, one_line
from rpcsys.module.kinds.remote import remote
from rpcsys.query import __main__ as query
from rpcsys.wire import page_body
from tests.scripted_peers import ScriptedTracker, answers, mutated

ROW = {"state": "ok", "reason": "", "until_s": None}
HELD = {"since_s": 70.5, "until_s": 3.5}
WHO = {"user": "ann", "address": "10.0.0.5"}
SUMMARY = {
    "queue_info": {"rpi4": {"free": 1, "pending": 2}},
    "server_info": [{"key": "server:rpi4", "addr": ["10.0.0.7", 9090]}],
    "servers": [{"name": "b:1", "limits": True, "labels": {"name": "b"}, "slots": 2, "running": 1, "free": 1, **ROW}],
    "leases": [
        {"lease": "l-1", "key": "rpi4", "server": "b:1", "holder": "ann", "address": "x", "state": "running", **HELD}
    ],
}
WHY = {
    "free": 0,
    "devices": 2,
    "waiting": 1,
    "reasons": ["2 of 2 devices are taken"],
    "holders": [{"server": "b:1", "inferred": False, **WHO, **HELD}],
    "queue": [{"priority": 1, "risen": 0, "waited_s": 1.5, "spent_s": 2, "labels": {"a": "b"}, "count": 1, **WHO}],
    "servers": [{"server": "b:1", **ROW, "state": "drained"}],
}
MODULES = [
    {"name": "m", "version": "1", "server": "b", "host": "h", "port": 9, "key": "", "workers": 1, "running": 0}
    | {"waiting": 0, "clients": 3}
]
PAST = [
    {"lease": "l-1", "key": "k", "server": "b", **WHO, "outcome": "lost", "reason": "r", "ended": 1.7e9}
    | {"held_s": 3.5, "waited_s": 0}
]
USAGE = [{"user": "ann", "key": "k", "leases": 3, "held_s": 9.5, "waited_s": 0, "faults": 0}]

COMMANDS = {
    "": {"summary": SUMMARY, "next": None},
    "--json": {"summary": SUMMARY, "next": None},
    "leases": {"summary": SUMMARY, "next": None},
    "leases --json": {"summary": SUMMARY, "next": None},
    "--why rpi4": {"why": WHY},
    "--why rpi4 --json": {"why": WHY},
    "modules": {"modules": MODULES},
    "modules m --json": {"modules": MODULES},
    "history": {"leases": PAST, "before": None},
    "history --all --json": {"leases": PAST, "before": None},
    "usage": {"usage": USAGE},
    "usage --json": {"usage": USAGE},
}
FAST = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tracker():
    with ScriptedTracker() as tracker:
        yield tracker


def run(tracker, command, says):
    """The status and the output of a query; the output must be printable."""
    tracker.replies = says
    before, sub = ([], command.split()) if command.startswith("-") else (command.split()[:1], command.split()[1:])
    where = ["--host", tracker.address[0], "--port", str(tracker.address[1])]
    return printed(lambda: query.main([*before, *where, *sub]))


def printed(act, one_line=True):
    done = []
    with CliRunner().isolation() as (out, err, *_):
        done.append(act())
        streams = (out.getvalue(), err.getvalue())
    out, err = (data.decode("utf-8") for data in streams)
    for text in (out, err):
        assert text.replace("\n", "").isprintable()
    assert not one_line or err.count("\n") == (1 if done[0] else 0), err
    return done[0], out, err


@pytest.mark.parametrize("command", COMMANDS)
def test_valid_answers_are_printed(tracker, command):
    status, out, _ = run(tracker, command, answers(COMMANDS[command]))
    assert status == 0
    assert out


@FAST
@given(data=st.data(), command=st.sampled_from(sorted(COMMANDS)))
def test_invalid_answers_are_one_line(tracker, data, command):
    said = data.draw(mutated(COMMANDS[command]))
    status, _, _ = run(tracker, command, answers(said))
    assert status in (0, 1)


def newer(value, label=""):
    """``value`` with a further field in each object."""
    if isinstance(value, dict) and label not in ("labels", "queue_info"):
        return {"colour": {"deep": [1, None]}, **{name: newer(item, name) for name, item in value.items()}}
    return [newer(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("command", COMMANDS)
def test_further_fields_of_a_newer_tracker_are_ignored(tracker, command):
    status, out, _ = run(tracker, command, answers(newer(COMMANDS[command])))
    assert (status, bool(out)) == (0, True)
    assert ("colour" in out) == ("--json" in command)


def test_watch_ends_at_the_first_invalid_answer(tracker, monkeypatch):
    monkeypatch.setattr(query, "WATCH_S", 0.0)
    looks = []

    def says(asked):
        looks.append(asked)
        said = COMMANDS[""] if len(looks) <= 3 else {"summary": {**SUMMARY, "servers": 5}, "next": None}
        return [{"ok": True, "id": asked["id"], **said}]

    status, out, _ = run(tracker, "--watch", says)
    assert (status, len(looks)) == (1, 4)
    assert out.count("Tracker address") == 3


REPLICA = {"address": "b:1", "http_port": 0, "version": "1", "role": "leads", "through": 4, "behind": 0, "since": 1.7e9}
REPLICAS = {"leader": "b:1", "term": 3, "engine": "up", "replicas": [REPLICA]}


def page(said):
    """The answer with a page of the tracker."""
    return answers({"kind": "application/json", "body": page_body.pack(json.dumps(said).encode())})


def test_replicas_are_printed_with_further_fields_too(tracker):
    for said in (REPLICAS, newer(REPLICAS)):
        status, out, _ = run(tracker, "replicas", page(said))
        assert (status, out.splitlines()[0]) == (0, "b:1 leads (term 3)")
    assert run(tracker, "replicas --json", page(REPLICAS))[1] == json.dumps(REPLICAS) + "\n"


@FAST
@given(said=mutated(REPLICAS), form=st.sampled_from(["replicas", "replicas --json"]))
def test_invalid_replicas_are_one_line(tracker, said, form):
    assert run(tracker, form, page(said))[0] in (0, 1)


@FAST
@given(body=st.text(max_size=40) | st.binary(max_size=40).map(page_body.pack))
def test_a_page_of_replicas_that_is_none_is_one_line(tracker, body):
    assert run(tracker, "replicas", answers({"kind": "application/json", "body": body}))[0] == 1


@FAST
@given(said=mutated(COMMANDS[""]))
def test_board_commands_accept_or_refuse_any_summary(tracker, said):
    """The questions of `rpcsys board list` and `add`."""
    tracker.replies = answers(said)
    where = "{}:{}".format(*tracker.address)
    summary = board._summary(where)
    if summary is not None:
        for name in ("b", "c"):
            assert type(lifecycle.state(summary, name)) is str
            lifecycle.row(summary, name)
    with contextlib.suppress(RpcsysError):
        lifecycle.wait(tracker.address, "b", "k", 0.0)


PLACE = {**MODULES[0], "name": "m", "host": "127.0.0.1", "port": 1}


def tried(act):
    with pytest.raises(RpcsysError) as caught:
        act()
    assert len(one_line(caught.value)) <= 500
    assert one_line(caught.value).isprintable()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=mutated({"modules": [PLACE, PLACE]}))
def test_any_list_of_deployed_modules_ends_in_an_error(tracker, said):
    """A module by its name at a tracker, and a remote module that calls it."""
    for row in said["modules"] if type(said.get("modules")) is list else ():
        if type(row) is dict:  # no name is looked up
            row.update(host="127.0.0.1", port=1)
    tracker.replies = answers(said)
    with connect_tracker(tracker.address) as client:
        tried(lambda: client.serve("m"))
    where = "{}:{}".format(*tracker.address)
    with contextlib.closing(remote(serve="m", tracker=where, wait_s=0.1)) as module:
        tried(lambda: module(1))


def test_a_long_list_of_servers_is_not_tried_to_the_end(tracker):
    """At most `PLACES` of them are tried."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        came = []

        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    came.append(listener.accept()[0])
                    came[-1].close()

        threading.Thread(target=hang_up, daemon=True).start()
        row = {**PLACE, "port": listener.getsockname()[1]}
        tracker.replies = answers({"modules": [row] * 300})
        with connect_tracker(tracker.address) as client:
            tried(lambda: client.serve("m"))
        assert len(came) <= PLACES
        listener.shutdown(socket.SHUT_RDWR)


def test_a_summary_whose_pages_repeat_is_an_error(tracker):
    for following in ([0, 5], [0, 0], [1, 2**53]):
        said = {"summary": SUMMARY, "next": following}
        status, _, err = run(tracker, "", answers(said))
        assert status == 1
        assert "do not go on" in err or "does not go on" in err


def test_empty_pages_without_end_are_an_error(tracker):
    empty = {"queue_info": {}, "server_info": [], "servers": [], "leases": []}

    def says(asked):
        place = [0, (asked["after"] or [0, 0])[1] + 1]
        return [{"ok": True, "id": asked["id"], "summary": empty, "next": place}]

    assert "does not go on" in run(tracker, "", says)[2]


@pytest.mark.parametrize("before", [7, 2**53, 0, -1, "x"])
def test_a_history_whose_pages_repeat_is_an_error(tracker, before):
    status, _, err = run(tracker, "history --all", answers({"leases": PAST, "before": before}))
    assert status == 1
    assert err


def test_an_endless_history_is_bounded(tracker, monkeypatch):
    monkeypatch.setattr(shapes, "MAX_BYTES", 1 << 20)

    def says(asked):
        before = (asked["before"] or 2**53) - 1
        return [{"ok": True, "id": asked["id"], "leases": PAST * 1000, "before": before}]

    status, _, err = run(tracker, "history --all", says)
    assert status == 1
    assert "ask for less" in err
    assert run(tracker, "history --limit 5", says)[0] == 1


@pytest.mark.slow
def test_the_wait_for_a_missing_answer_is_bounded(tracker, monkeypatch):
    """Also if many other messages come: the wait is bounded, and so are the messages kept."""
    monkeypatch.setattr(shapes, "REPLY_S", 1.0)
    monkeypatch.setattr("rpcsys.client.tracker.REPLY_S", 1.0)
    event = {"id": 10**6, "event": "queued"}

    def flood(asked):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            yield {"id": asked["id"], "event": "news"}

    for says in (
        lambda asked: [],
        lambda asked: [b"\x10"],
        lambda asked: [b"\x10\0\0\0{"],
        lambda asked: [event] * 1000,
        flood,
    ):
        for command in ("", "--why k", "history"):
            began = time.monotonic()
            assert run(tracker, command, says)[0] == 1
            assert time.monotonic() - began < 10


@FAST
@given(said=mutated({"ok": False, "error": "UnknownKey", "message": "no server"}))
def test_a_refusal_of_any_form_is_one_line(tracker, said):
    status, _, err = run(tracker, "--why k", lambda asked: [{**said, "id": asked["id"]}])
    assert status == 1
    assert len(err) < 600


LEASE = {"lease": "l", "epoch": 1, "key": "k", "matchkey": "k:1"}
QUEUED = {"event": "queued", "position": 1, "ahead": 0, "eta_s": [1, 5], "ticket": "t", "holders": [WHO]}
TIMEOUT = {"ok": False, "error": "WaitTimeout", "message": "m"}


def others(tracker, command, event, final):
    """The status of another command when the tracker sends ``event`` and ``final``."""
    tracker.replies = lambda asked: [
        {**one, "id": asked["id"]} for one in ((final,) if asked["op"] != "request" else (event, final))
    ]
    name, *rest = [word.format(tracker.address[1]) for word in command.split()]
    done, _, err = printed(lambda: run_group([name, *rest]), one_line=False)
    assert "Traceback" not in err
    return done


@pytest.mark.parametrize("command", ["drain b", "enable b", "lease end l-1", f"run --key k {__file__}"])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    event=mutated(QUEUED).filter(lambda event: type(event.get("event")) is str),
    final=mutated(TIMEOUT) | mutated({"ok": True, "leases": [LEASE]}),
)
def test_other_commands_survive_invalid_answers(tracker, command, event, final):
    command += " --tracker 127.0.0.1:{}"
    for lease in final["leases"] if isinstance(final.get("leases"), list) else ():
        if isinstance(lease, dict):  # no name is looked up
            lease.update(host="127.0.0.1", port=1)
    assert others(tracker, command, event, final) in (0, 1)


@pytest.mark.parametrize("host", ["a\0b", "x" * 300, "a..b", "x" * 200, 5, None, "", "\u202ex", "::1::"])
@pytest.mark.parametrize("port", [1, None, -1, 70000, "1", 1.5])
def test_an_invalid_address_in_a_lease_is_refused(tracker, host, port):
    lease = {**LEASE, "host": host, "port": port}
    command = f"run --key k {__file__} --tracker 127.0.0.1:{{}}"
    assert others(tracker, command, QUEUED, {"ok": True, "leases": [lease]}) in (1, 2)
