"""Programs on a board: their streams, terminals, signals and exit statuses, and what is left of them."""

from __future__ import annotations

import hashlib
import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import rpcsys
from rpcsys.cli.exec import INSISTS
from rpcsys.errors import DeadlineExceeded, ExecNotAllowed, SessionLost
from tests.live.board_commands import FLAGS, WAIT_S, run, shell, started, words
from tests.live.daemons import Daemon, Daemons, wait_until
from tests.live.sshboard import SshBoard

MB = 1 << 20
#: What a session's process may hold beside its code, whatever its programs write.
MOST_RSS = 100 * MB
CLEAN_S = 2.0
#: What a shell runs, and the exit status of ssh for it, and so of ours.
STATUSES = {
    "exit 0": 0,
    "exit 3": 3,
    "exit 255": 255,
    "no-such-program 2>/dev/null": 127,
    "kill -9 $$": 255,
    "kill -TERM $$": 255,
    "sh -c 'kill -9 $$'; exit $?": 137,
}


@pytest.mark.parametrize("script", ["exit 3", "kill -9 $$", "sh -c 'kill -9 $$'; exit $?"])
def test_exit_statuses(server: Daemon, script: str) -> None:
    assert run(server, "exec", *shell(script)).returncode == STATUSES[script]


@pytest.mark.slow
def test_exit_statuses_are_those_of_ssh(server: Daemon, tmp_path: Path) -> None:
    ssh = SshBoard(tmp_path).start()
    try:
        for script, status in STATUSES.items():
            theirs = subprocess.run(["ssh", *ssh.flags(), "root@127.0.0.1", script], timeout=WAIT_S, input=b"")
            assert (theirs.returncode, run(server, "exec", *shell(script)).returncode) == (status, status), script
    finally:
        ssh.stop()


def test_what_cannot_be_started_has_the_status_of_a_shell_and_one_line(server: Daemon) -> None:
    for program, status in (("no-such-program", 127), ("/etc/passwd", 126)):
        ended = run(server, "exec", program)
        assert (ended.returncode, ended.stderr.count(b"\n")) == (status, 1), ended.stderr
    nowhere = subprocess.run([*words(server, "exec")[:-3], "127.0.0.1:1", "true"], capture_output=True, timeout=WAIT_S)
    assert (nowhere.returncode, nowhere.stderr.count(b"\n")) == (255, 1)


def test_a_server_that_allows_no_programs_says_how_to(daemons: Daemons) -> None:
    server = daemons.server("k", *FLAGS)
    ended = run(server, "exec", "true")
    assert ended.returncode == 255
    assert ended.stderr.count(b"\n") == 1
    assert b"--allow-exec" in ended.stderr
    with rpcsys.connect(*server.address, key="k") as session:
        for refused in (lambda: session.popen(["true"]), lambda: session.forward(80)):
            with pytest.raises(ExecNotAllowed):
                refused()


def test_signals_of_the_desk_go_to_the_program(server: Daemon) -> None:
    script = 'for s in INT TERM HUP QUIT USR1; do trap "echo $s; [ $s = USR1 ] && exit 7" $s; done; echo ready; '
    with started(server, "exec", *shell(script + "while :; do sleep 0.05; done")) as command:
        lines = iter(command.stdout.readline, b"")
        assert next(lines) == b"ready\n"
        for name in ("INT", "TERM", "HUP", "QUIT", "USR1"):
            command.send_signal(getattr(signal, f"SIG{name}"))
            assert next(lines) == name.encode() + b"\n"
        assert command.wait(WAIT_S) == 7


def test_programs_ignore_no_signal_however_the_server_was_started(daemons: Daemons) -> None:
    ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

    def as_nohup() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    server = daemons.server("k", *FLAGS, "--allow-exec", preexec_fn=as_nohup)
    ended = run(server, "exec", "grep", "SigIgn", "/proc/self/status")
    assert int(ended.stdout.split()[1], 16) & sum(1 << number - 1 for number in ignored) == 0


def test_the_streams_come_whole_in_order_and_apart(server: Daemon) -> None:
    data = os.urandom(64 * MB)
    script = "cat; echo end; echo error >&2; pwd -P; echo $NAME"
    ended = run(server, "exec", "-e", "NAME=a b", "-C", "/tmp", *shell(script), input=data)
    assert ended.returncode == 0, ended.stderr
    assert hashlib.sha256(ended.stdout[: len(data)]).digest() == hashlib.sha256(data).digest()
    assert (ended.stdout[len(data) :], ended.stderr) == (b"end\n/tmp\na b\n", b"error\n")
    # A reader that ends early ends the program, as in any pipeline.
    pipeline = " ".join(words(server, "exec", "yes")) + " | head -1"
    assert subprocess.run(pipeline, shell=True, capture_output=True, timeout=WAIT_S).stdout == b"y\n"


def test_output_that_cannot_be_written_is_an_error_and_a_closed_stream_is_none(server: Daemon) -> None:
    to = {"stderr": subprocess.PIPE, "timeout": WAIT_S}
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(words(server, "exec", "echo", "lost"), stdout=full, **to)
    assert (ended.returncode, ended.stderr.count(b"\n")) == (255, 1)
    assert b"cannot write what the program prints: No space left on device" in ended.stderr
    # Without a standard output, the session's socket would have its number.
    closed = shlex.join(words(server, "exec", *shell("head -c 300 /dev/zero; exit 4"))) + " <&- >&-"
    ended = subprocess.run(closed, shell=True, **to)
    assert (ended.returncode, ended.stderr) == (4, b"")


def test_bytes_come_when_they_are_written(session: rpcsys.client.Session) -> None:
    with session.popen(["cat"]) as process:
        for number in range(20):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
            assert process.stdout.readline() == b"%d\n" % number
    assert process.returncode == 0


#: Prints the size of its terminal, and each new one, until it is interrupted. A shell may miss a signal before a wait.
SIZES = """
import os, signal, time

def size(*_):
    print(*reversed(os.get_terminal_size()), flush=True)

def interrupted(*_):
    print("interrupted", flush=True)
    os._exit(4)

signal.signal(signal.SIGWINCH, size)
signal.signal(signal.SIGINT, interrupted)
size()
while True:
    time.sleep(0.05)
"""


def test_a_terminal_follows_the_size_of_this_one(server: Daemon) -> None:
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "rows", "30", "cols", "90"], stdin=theirs, check=True)
    before = subprocess.run(["stty", "-a"], stdin=theirs, capture_output=True, check=True).stdout
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with started(server, "exec", "-t", "python3", "-c", SIZES, **ends) as command:
        said = b""

        def until(text: bytes) -> None:
            nonlocal said
            while text not in said:
                assert select.select([ours], [], [], WAIT_S)[0], said
                said += os.read(ours, 4096)

        until(b"30 90")
        subprocess.run(["stty", "rows", "41", "cols", "99"], stdin=theirs, check=True)
        command.send_signal(signal.SIGWINCH)
        until(b"41 99")
        os.write(ours, b"\x03")  # this terminal is raw: the key goes to the board's
        until(b"interrupted")
        assert command.wait(WAIT_S) == 4
    subprocess.run(["stty", "rows", "30", "cols", "90"], stdin=theirs, check=True)
    assert subprocess.run(["stty", "-a"], stdin=theirs, capture_output=True, check=True).stdout == before


def test_unread_output_stops_neither_calls_nor_other_programs(session: rpcsys.client.Session) -> None:
    process = psutil.Process(session.info["pid"])
    endless, echo = session.popen(["cat", "/dev/zero"]), session.get_function("testing.echo")
    unread = session.popen(["cat"])  # takes nothing: what is sent stays in pipes and windows
    writer = threading.Thread(target=lambda: unread._write_all(bytes(64 * MB)), daemon=True)
    writer.start()
    assert [echo(number) for number in range(100)] == list(range(100))
    assert session.exec(["echo", "more"]).stdout == b"more\n"
    assert process.memory_info().rss < MOST_RSS
    for each in (endless, unread):
        each.close()
    writer.join(WAIT_S)
    assert not writer.is_alive()


def test_a_program_goes_on_during_a_call(session: rpcsys.client.Session) -> None:
    process = session.popen(["cat"])
    running = session.get_function("testing.sleep").submit(5.0)
    data = os.urandom(4 * MB)
    assert process.communicate(data, timeout=4.0)[0] == data
    assert not running.done()
    running.cancel()


def test_a_time_limit_kills_the_program(session: rpcsys.client.Session) -> None:
    with pytest.raises(DeadlineExceeded):
        session.exec(shell("trap '' TERM; echo $$ >pid; while :; do sleep 1; done"), timeout=1.0)
    gone = shell("for n in $(seq 100); do kill -0 $(cat pid) 2>/dev/null || exit 0; sleep 0.05; done; exit 1")
    assert session.exec(gone).returncode == 0


NASTY = {
    "ignores SIGTERM": "trap '' TERM INT HUP; echo ready; while :; do sleep 1; done",
    "daemonises": "setsid sh -c 'setsid sleep 600 & echo ready; sleep 600' & sleep 600",
    "prints without end": "echo ready; cat /dev/zero",
}


@pytest.mark.parametrize(("nasty", "end"), [*((nasty, "killed") for nasty in NASTY), ("ignores SIGTERM", "closed")])
def test_nothing_is_left_of_a_program(server: Daemon, nasty: str, end: str) -> None:
    idle = {process.pid for process in psutil.Process(server.pid).children(recursive=True)}
    command = started(server, "exec", *shell(NASTY[nasty]))
    try:
        assert command.stdout.readline() == b"ready\n"
        made = {each.pid for each in psutil.Process(server.pid).children(recursive=True)} - idle
        made = {pid for pid in made if psutil.Process(pid).name() in ("sh", "sleep", "cat")}
        assert made
        if end == "killed":
            command.kill()
        else:
            for _ in range(INSISTS):
                command.send_signal(signal.SIGINT)
                time.sleep(0.2)  # two at once would be one
        wait_until(lambda: not any(map(psutil.pid_exists, made)), CLEAN_S, "the programs are gone")
    finally:
        command.kill()
        command.communicate()
    wait_until(lambda: run(server, "exec", "true").returncode == 0, WAIT_S, "a slot is free again")


def test_who_waits_for_a_program_hears_of_the_sessions_end(session: rpcsys.client.Session) -> None:
    process = session.popen(["sleep", "600"])
    psutil.Process(session.info["pid"]).kill()
    with pytest.raises(SessionLost):
        process.communicate()


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed: apt-get install rsync")
def test_rsync_goes_through_it(daemons: Daemons, tmp_path: Path) -> None:
    tracker = daemons.tracker()
    daemons.server("k", *FLAGS, "--session-user", "none", "--allow-exec", tracker=tracker)
    source, target = tmp_path / "source", tmp_path / "a target"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "data").write_bytes(os.urandom(2 * MB))
    remote = f"{sys.executable} -m rpcsys exec --tracker {tracker.where} --rsh"
    command = ["rsync", "-r", "-e", remote, f"{source}/", f"k:{target}"]
    ended = subprocess.run(command, capture_output=True, timeout=WAIT_S)
    assert ended.returncode == 0, ended.stderr
    assert (target / "sub" / "data").read_bytes() == (source / "sub" / "data").read_bytes()
