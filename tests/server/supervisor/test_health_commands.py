"""The operator's commands as real processes: their output, their end, and their process group."""

import time

import psutil
import pytest

from rpcsys.server.supervisor import health_commands as module
from rpcsys.server.supervisor.health import CHECK, RECOVER
from rpcsys.server.supervisor.health_commands import HealthCommands
from rpcsys.server.supervisor.loop import Loop

SOON_S = 20.0


@pytest.fixture
def run():
    loop = Loop()

    def to_its_end(command, what=CHECK):
        commands = HealthCommands(loop, {what: command})
        commands.run(what)
        until = time.monotonic() + SOON_S
        while not loop.events:
            assert time.monotonic() < until, "the command does not end"
            loop.run_once()
        assert not loop.timers
        event = loop.events.pop()
        assert event.what == what
        return event.problem

    yield to_its_end
    loop.close()


def test_a_command_that_succeeds_has_no_problem(run):
    assert run("true") == ""
    assert run("echo 42 degrees", RECOVER) == ""


def test_the_problem_is_the_last_printed_line(run):
    assert run("echo one; echo 'it is too hot' >&2; exit 3") == "status 3: it is too hot"
    assert run("exit 1") == "status 1"
    assert run("kill -9 $$") == "signal 9"
    assert run("no-such-command-here").startswith("status 127: ")


def test_any_output_is_accepted(run):
    problem = run("head -c 3000000 /dev/zero | tr '\\0' x; echo; printf 'a\\tb\\033[0m\\n'; exit 1")
    assert problem == "status 1: a b [0m"
    assert len(run("head -c 5000 /dev/zero | tr '\\0' y; exit 1")) <= 200


def test_a_late_command_is_killed_with_its_process_group(run, monkeypatch, tmp_path):
    monkeypatch.setitem(module.TIMEOUT_S, CHECK, 1.0)
    note = tmp_path / "pid"
    assert run(f"sleep 1000 & echo $! > {note}; wait") == "it was not done after 1 s"
    pid = int(note.read_text())
    until = time.monotonic() + SOON_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_background_process_does_not_delay_the_end(run):
    began = time.monotonic()
    assert run("sleep 5 & exit 4") == "status 4"
    assert time.monotonic() - began < 4
