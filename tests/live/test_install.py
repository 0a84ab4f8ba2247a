"""install.sh below a folder of the test, with this machine's Python: installs, upgrades, killed upgrades, removals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import rpcsys
from tests.live import versions
from tests.live.daemons import Daemon, Daemons, alive, queue, wait_free, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "lab:board"
START_S = 60.0
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


@pytest.fixture(scope="module")
def old(current_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return versions.unpacked(current_archive, tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def new(old: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return versions.successor(old, tmp_path_factory.mktemp("new"))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The root of the installation; processes that still run from it are killed."""
    yield tmp_path / "root"
    for process in processes_below(tmp_path / "root"):
        os.kill(process, signal.SIGKILL)


def processes_below(root: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(root).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def shell(program: str) -> list[str]:
    return ["busybox", "sh"] if program == "busybox" else [program]


def run(*command: str | Path, path: str = "", status: int = 0) -> str:
    """Run a command on the board; its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RPCSYS"))}
    environment["RPCSYS_PYTHON"] = sys.executable
    environment["PATH"] = path + environment["PATH"]
    # Standard input is a file: servers that the command starts keep it open.
    with (
        Path("/dev/null").open() as nothing,
        subprocess.Popen(
            [str(word) for word in command],
            stdin=nothing,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
        ) as done,
    ):
        said, _ = done.communicate(timeout=100)
    assert done.returncode == status, said
    return said


def install(top: Path, root: Path, *flags: str, program: str = "sh", path: str = "", status: int = 0) -> str:
    root.mkdir(exist_ok=True)
    return run(*shell(program), top / "install.sh", "--root", root, "--no-self-test", *flags, path=path, status=status)


def served(tracker: Daemon) -> tuple[str, ...]:
    return "--key", KEY, "--host", "127.0.0.1", "--port", "0", "--tracker", tracker.where, "--label", "a=b c"


def versions_in_use(root: Path) -> set[str]:
    """The versions of the running servers."""
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in processes_below(root)]
    return {
        found for command in commands for found in re.findall(r"/versions/([\d.]+)-\w+/bin/\.\./python/start", command)
    }


@pytest.mark.parametrize("program", SHELLS)
def test_installs_upgrades_and_leaves_nothing(program: str, old: Path, new: Path, root: Path, daemons: Daemons) -> None:
    tracker = daemons.tracker()
    (root / "usr/local").mkdir(parents=True)
    said = install(old, root, *served(tracker), program=program)
    assert said.startswith(f"rpcsys {rpcsys.__version__}-")
    wait_free(tracker, KEY, 1, START_S)
    flags = (root / "etc/rpcsys/lab-board.flags").read_text()
    assert flags.splitlines()[:2] == ["--key", KEY]
    assert "a=b c" in flags.splitlines()

    assert "[--self-test]" in run(root / "usr/local/bin/rpcsys-server", "--help")

    session = rpcsys.connect_tracker(tracker.address).request(KEY, wait_timeout=START_S)
    assert versions_in_use(root) == {rpcsys.__version__}
    upgrade = subprocess.Popen(
        [*shell(program), new / "install.sh", "--root", root, "--no-self-test"],
        env={**os.environ, "RPCSYS_PYTHON": sys.executable}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: os.readlink(root / "opt/rpcsys/current").startswith("versions/9.9.9"), START_S, "switched")
    time.sleep(0.5)
    assert upgrade.poll() is None, "it waits for the session"
    assert session.get_function("testing.echo")(1) == 1
    session.close()
    assert upgrade.wait(START_S) == 0
    wait_free(tracker, KEY, 1, START_S)
    with rpcsys.connect_tracker(tracker.address).request(KEY, wait_timeout=START_S) as session:
        assert versions_in_use(root) == {"9.9.9"}
        assert session.get_function("testing.echo")(1) == 1
    assert (root / "etc/rpcsys/lab-board.flags").read_text() == flags
    assert [path.name[:5] for path in (root / "opt/rpcsys/versions").iterdir()] == ["9.9.9"]

    run(*shell(program), root / "opt/rpcsys/current/install.sh", "--root", root, "--uninstall")
    assert sorted(root.rglob("*")) == [root / "usr", root / "usr/local"], "what was there before"
    wait_until(lambda: not processes_below(root), START_S, "nothing runs")
    assert queue(tracker, KEY)["free"] == 0


def test_a_killed_server_is_restarted(old: Path, root: Path, daemons: Daemons) -> None:
    tracker = daemons.tracker()
    install(old, root, *served(tracker))
    wait_free(tracker, KEY, 1, START_S)
    started = [pid for pid in processes_below(root) if b"start.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    # The server's children have the same command line.
    (server,) = [pid for pid in started if psutil.Process(pid).ppid() not in started]
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not alive(server), START_S, "killed")
    wait_free(tracker, KEY, 1, START_S)
    assert "runs" in run(root / "etc/init.d/rpcsys-server", "status")
    run(root / "etc/init.d/S90rpcsys-server", "stop")
    wait_until(lambda: not processes_below(root), START_S, "nothing runs")
    assert "does not run" in run(root / "etc/init.d/rpcsys-server", "status")


#: Replaces a program: the Nth call of any of them kills the shell, before or after its work.
FUSE = """#!/bin/sh
count=$(cat {fuse}) && count=$((count - 1)) && echo $count >{fuse}
[ $count = 0 ] && [ $(cat {fuse}.when) = before ] && kill -9 $PPID && exit
PATH={path} {program} "$@"
status=$?
[ $count = 0 ] && kill -9 $PPID
exit $status
"""


@pytest.fixture
def fuse(tmp_path: Path) -> Path:
    folder = tmp_path / "shims"
    folder.mkdir()
    for program in ("cp", "ln", "mv", "rm", "mkdir", "sync", "chmod"):
        shim = folder / program
        shim.write_text(FUSE.format(fuse=tmp_path / "fuse", path=os.environ["PATH"], program=shutil.which(program)))
        shim.chmod(0o755)
    return tmp_path / "fuse"


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_a_kill_at_any_time_the_old_or_the_new_version_starts(
    when: str, old: Path, new: Path, root: Path, fuse: Path, tmp_path: Path
) -> None:
    flags = ("--key", KEY, "--host", "127.0.0.1", "--port", "0")
    install(old, root, "--no-start", *flags)
    configured = (root / "etc/rpcsys/lab-board.flags").read_text()
    intact = tmp_path / "intact"
    shutil.copytree(root, intact, symlinks=True)
    fuse.with_name("fuse.when").write_text(when)
    outcomes = []
    for count in range(1, 100):
        shutil.rmtree(root)
        shutil.copytree(intact, root, symlinks=True)
        fuse.write_text(str(count))
        command = ["sh", str(new / "install.sh"), "--root", str(root), "--no-start"]
        environment = {
            **os.environ,
            "RPCSYS_PYTHON": sys.executable,
            "PATH": f"{fuse.parent}/shims:{os.environ['PATH']}",
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        current = root / "opt/rpcsys/current"
        run(sys.executable, current / "python/verify.py")
        assert (root / "etc/rpcsys/lab-board.flags").read_text() == configured
        outcomes.append(os.readlink(current).startswith("versions/9.9.9"))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        # The rest of a killed upgrade does not disturb the next one.
        fuse.write_text("1000")
        install(new, root, "--no-start")
        assert os.readlink(current).startswith("versions/9.9.9")
        assert [path.name[:5] for path in (root / "opt/rpcsys/versions").iterdir()] == ["9.9.9"]
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert outcomes == sorted(outcomes), "the new version stays in use"
    assert len(outcomes) > 8


def test_install_sh_installs_into_an_image_of_another_board(old: Path, root: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(old, foreign)
    manifest = json.loads((foreign / "manifest.json").read_text())
    manifest.update(machine="riscv", libraries={"a.so": {}})
    (foreign / "manifest.json").write_text(json.dumps(manifest))
    assert "packed for riscv" in install(foreign, root, "--key", KEY, status=1)
    install(foreign, root, "--no-start", "--key", KEY)
    assert (root / "etc/rpcsys/lab-board.flags").read_text() == f"--key\n{KEY}\n"
    assert (root / "etc/init.d/S90rpcsys-server").resolve() == root / "etc/init.d/rpcsys-server"
    # The image contains no path of this machine.
    links = [path for path in root.rglob("*") if path.is_symlink()]
    assert links
    assert not any(os.readlink(link).startswith("/") for link in links)


def test_removing_leaves_the_folders_that_were_there_before(old: Path, root: Path) -> None:
    for before in ([], ["etc", "etc/init.d", "mine", "var"]):
        for folder in before:
            (root / folder).mkdir(parents=True, exist_ok=True)
        run("sh", old / "install.sh", "--root", root, "--no-start", "--key", KEY)
        run("sh", old / "install.sh", "--root", root, "--no-start", "--key", KEY, "--name", "second")
        uninstall = ("sh", root / "opt/rpcsys/current/install.sh", "--root", root, "--uninstall")
        run(*uninstall, "--name", "second")
        assert (root / "usr/local/bin").is_dir()
        run(*uninstall)
        assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == before
        assert root.exists() == bool(before)


def test_wrong_flags_and_damaged_archives_are_refused(old: Path, root: Path, tmp_path: Path) -> None:
    assert "nothing is installed yet" in install(old, root, status=2)
    assert "--key says what kind" in install(old, root, "--tracker", "h:1", status=2)
    assert "wants a value" in install(old, root, "--key", status=2)
    broken = tmp_path / "broken"
    shutil.copytree(old, broken)
    with (broken / "python/rpcsys/errors.py").open("a") as file:
        file.write("x = 1\n")
    assert "python/rpcsys/errors.py is not what was packed" in install(broken, root, "--key", KEY, status=1)
    (broken / "python/rpcsys/errors.py").unlink()
    assert "python/rpcsys/errors.py is missing" in install(broken, root, "--key", KEY, status=1)
    manifest = json.loads((broken / "manifest.json").read_text())
    manifest.update(machine="riscv", libraries={"a.so": {}})
    (broken / "manifest.json").write_text(json.dumps(manifest))
    assert "packed for riscv (64 bits), and the board is x86_64" in install(broken, root, "--key", KEY, status=1)
    assert list(root.iterdir()) == []
