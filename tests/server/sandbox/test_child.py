"""A child does one job, reports its outcome, and ends."""

import os
import shutil

import pytest

from rpcsys.server.sandbox import mount_namespace
from rpcsys.server.sandbox.messages import TVM_END, Job, send
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader
from tests.device import until

WHY_NOT = mount_namespace.probe("/tmp/rpcsys-probe")


@pytest.fixture(params=["forked", "fresh"])
def zygote(request, start):
    one = start(fork=request.param == "forked", isolate=not WHY_NOT)
    one.next_message("ready")
    one.spawn(1)
    one.child_message(1, "ready")
    return one


def ask(client, reader, kind, call_id, fields):
    """Send one frame; return the next frame received."""
    client.sendmsg(frames.encode(kind, call_id, fields))
    frame = None
    while frame is None:
        frame = reader.read(client.recv_into)
    return frame


def test_a_session_is_served_and_its_outcome_reported(zygote):
    with zygote.session(1) as client:
        reader = FrameReader()
        assert ask(client, reader, frames.HELLO, 0, {"version": 1}).kind == frames.HELLO
        result = ask(client, reader, frames.CALL, 1, {"f": "testing.echo", "a": [41]})
        assert (result.kind, result.call_id) == (frames.RESULT, 1)
        client.sendmsg(frames.encode(frames.GOODBYE, 2, {}))
        assert zygote.child_message(1, "opened") == {"opened": True}
        assert zygote.child_message(1, "outcome")["outcome"] == "closed"
    dead = zygote.next_message("dead")
    assert (dead["dead"], dead["status"]) == (1, 0)


def faults(pid):
    """How many pages the process has had to get, or to copy (proc(5), minflt)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[7])


def test_a_forked_child_rehearses_while_no_client_comes(start):
    zygote = start()
    zygote.next_message("ready")
    at_once, rehearsing = zygote.spawn(1, at_once=True)["pid"], zygote.spawn(2)["pid"]
    for child in (1, 2):
        zygote.child_message(child, "ready")
    until(lambda: faults(rehearsing) > faults(at_once) + 50, "it rehearses")


def test_a_client_that_disconnects_is_reported_as_lost(zygote):
    zygote.session(1).close()
    assert zygote.child_message(1, "outcome")["outcome"] == "lost"
    assert zygote.next_message("dead")["status"] == 0


def test_a_session_whose_folder_is_gone_ends_at_once(zygote):
    workdir = os.path.join(zygote.folder, "session-1", "files")
    send(zygote.controls[1], Job("rpcsys/1", b"", workdir, "k", "peer").to_bytes(), zygote.control.fileno())
    assert zygote.next_message("dead")["status"] == 1


def test_a_child_ends_when_its_control_socket_is_closed(zygote):
    zygote.controls[1].close()
    assert zygote.next_message("dead")["status"] == 0


def test_a_tvm_client_receives_the_end_of_its_session(zygote):
    with zygote.session(1, TVM_END) as client:
        client.close()
    assert zygote.next_message("dead")["dead"] == 1
    shutil.rmtree(os.path.join(zygote.folder, "session-1"))
