from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rpcsys import __version__
from rpcsys.lab import Lab
from rpcsys.stream import SPEEDUPS
from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([], 2, "A lab on this machine"),
        (["--help"], 0, "RPCSYS_TRACKER"),
        (["query", "history", "--help"], 0, "Usage: rpcsys query history"),
        (["tracker", "--help"], 0, "usage: rpcsys tracker"),
        (["--help"], 0, "A model on a device"),
        (["--version"], 0, f"rpcsys, version {__version__} (with{'' if SPEEDUPS else 'out'} speedups"),
        (["run", "--help"], 0, "INPUTS.npz"),
        (["compare", "--help"], 0, "exit status 0"),
    ],
)
def test_help(args: list[str], status: int, message: str, rpcsys: Command) -> None:
    done = rpcsys(*args)
    assert done.returncode == status
    assert message in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fly"], "No such command 'fly'"),
        (["run", "model.onnx"], "give --key, the kind of device to lease"),
        (["run", "--key", "cpu"], "give a MODEL to run, or --serve NAME"),
        (["run", "--key", "cpu", "--repeat", "0", "model.onnx"], "--repeat"),
        (["run", "--key", "cpu", "--repeat", "many", "model.onnx"], "--repeat"),
        (["run", "--key", "cpu", "nowhere.onnx"], "no such model: nowhere.onnx"),
        (["demo", "--fast"], "No such option"),
        (["tracker", "--port", "high"], "rpcsys tracker: error: "),
        (["server", "--port", "high"], "rpcsys server: error: "),
        (["query", "--port", "high"], "error: "),
    ],
)
def test_bad_usage_is_one_line_and_status_2(args: list[str], message: str, rpcsys: Command) -> None:
    done = rpcsys(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("daemon", ["tracker", "server", "query"])
def test_other_programs_get_their_arguments_unchanged(daemon: str, rpcsys: Command) -> None:
    done = rpcsys(daemon, "--help")
    assert done.returncode == 0
    assert "--port" in done.stdout


def test_an_unreachable_tracker_is_one_line(rpcsys: Command, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"never read")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        done = rpcsys("run", "--key", "cpu", "--tracker", f"127.0.0.1:{taken.getsockname()[1]}", "model.onnx")
    assert done.returncode == 1
    assert done.stderr.startswith("rpcsys: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.live
def test_drain_enable_and_ending_a_lease(lab: Lab, rpcsys: Command) -> None:
    def operate(*words: str) -> str:
        done = rpcsys(*words, tracker=lab.tracker_address)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with lab.connect() as tracker:
        name = tracker.summary()["servers"][0]["name"]
        assert operate("drain", name) == f"{name} gets no more sessions; undo with: rpcsys enable {name}\n"
        assert operate("drain", name) == f"{name} is drained already; undo with: rpcsys enable {name}\n"
        assert tracker.summary()["servers"][0]["state"] == "drained"
        assert operate("enable", name) == f"{name} gets sessions again\n"
        assert operate("enable", name) == f"{name} was neither drained nor set aside\n"
        assert tracker.summary()["servers"][0]["state"] == "ok"
        with tracker.request("cpu", wait_timeout=30) as session:
            lease = session.lease["lease"]
            assert operate("lease", "end", lease, "--reason", "a test") == f"lease {lease} ends\n"
    done = rpcsys("lease", "end", "no-such", tracker=lab.tracker_address)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_a_command_imports_no_other_commands_module() -> None:
    code = (
        "import sys; from rpcsys.cli.commands import run_group;"
        "status = run_group(['module', 'inspect', '--help']);"
        "print(status, sorted(name for name in sys.modules if name.startswith('rpcsys.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    imported = ["commands", "completion", "modules", "options"]
    assert done.stdout.splitlines()[-1] == f"0 {[f'rpcsys.cli.{name}' for name in imported]}"
