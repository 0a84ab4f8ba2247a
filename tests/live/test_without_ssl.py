"""A Python without ssl: each program says in one sentence what is missing; what is in no lab works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rpcsys.link import credential
from rpcsys.wire.tokens import HolderKind
from tests.live.daemons import ROOT, Daemon, Daemons
from tests.live.labs import LabOnDisk

pytestmark = pytest.mark.live
SAYS = "this Python has no ssl module; {} needs it: Debian has it in python3, Buildroot: BR2_PACKAGE_PYTHON3_SSL=y"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With it, this interpreter's ssl cannot be imported."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text('import sys\nsys.modules["_ssl"] = None\n')
    return {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def lab(tmp_path: Path) -> LabOnDisk:
    return LabOnDisk(tmp_path)


@pytest.fixture
def tracker(lab: LabOnDisk, daemons: Daemons) -> Daemon:
    return lab.tracker(daemons)


def run(environment: dict[str, str], *words: str, typed: str = "") -> tuple[int, str]:
    """A command's exit status, and what it says on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        input=typed, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    return done.returncode, done.stderr


def test_daemons_of_a_lab_say_what_is_missing(
    lab: LabOnDisk, tracker: Daemon, environment: dict[str, str], tmp_path: Path
) -> None:
    path = str(tmp_path / "own.json")
    credential.write(path, lab.join("rpi4-1", HolderKind.BOARD, device_keys=("rpi4",)))
    own = ("--tracker", lab.where, "--lab", path)
    for name, words in (
        ("a lab", ("rpcsys.server", "--key", "rpi4", *own)),
        ("a lab", ("rpcsys.server", "--key", "rpi4", "--standing-key", str(tmp_path / "key"))),
        ("rpcsys-proxy", ("rpcsys.proxy", *own)),
        ("rpcsys-tracker", ("rpcsys.tracker", "--lab", str(lab.path))),
    ):
        status, said = run(environment, *words)
        assert status == 2
        assert SAYS.format(name) in said
        assert said.count("\n") == 1


def test_commands_say_what_is_missing(
    lab: LabOnDisk, tracker: Daemon, environment: dict[str, str], tmp_path: Path
) -> None:
    path = str(tmp_path / "own.json")
    credential.write(path, lab.keeper)
    member = {**environment, "RPCSYS_LAB": path, "RPCSYS_TRACKER": lab.where}
    for words in (("whoami",), ("lab", "invite", "bo"), ("query",)):
        status, said = run(member, "rpcsys", *words)
        assert (status, said.count("\n")) == (2, 1), said
        assert SAYS.format("a lab") in said
    script = "import rpcsys; rpcsys.connect_tracker()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env={**os.environ, **member}
    )
    assert f"ConfigError: {SAYS.format('a lab')}" in done.stderr


def test_an_invitation_is_not_used_up(
    lab: LabOnDisk, tracker: Daemon, environment: dict[str, str], tmp_path: Path
) -> None:
    member = {"XDG_CONFIG_HOME": str(tmp_path / "of-mo")}
    (tmp_path / "of-mo" / "rpcsys" / "labs").mkdir(parents=True, mode=0o700)
    credential.write(str(tmp_path / "of-mo" / "rpcsys" / "labs" / "basement.json"), lab.keeper)
    done = subprocess.run(
        [sys.executable, "-m", "rpcsys", "lab", "invite", "bo", "--tracker", lab.where],
        capture_output=True, text=True, check=True, env={**os.environ, **member},
    )  # fmt: skip
    status, said = run(environment, "rpcsys", "login", typed=done.stdout)
    assert status == 2
    assert SAYS.format("a lab") in said
    status, said = run({"XDG_CONFIG_HOME": str(tmp_path / "of-bo")}, "rpcsys", "login", typed=done.stdout)
    assert status == 0, said


def test_a_server_in_no_lab_serves_and_the_self_test_says_what_is_missing(
    daemons: Daemons, environment: dict[str, str]
) -> None:
    server = daemons.server("edge", env=environment)
    assert server.running()
    done = subprocess.run(
        [sys.executable, "-m", "rpcsys.server", "--self-test"],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if " TLS " in line]
    assert line.startswith("missing")
    assert SAYS.format("a lab") in line
