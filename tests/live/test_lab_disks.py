"""A lab's folder on a disk that is full, or that cannot be written. Each disk is a tmpfs in a mount namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.daemons import START_S, Daemons, wait_until
from tests.live.lab_site import KEEPER, UNAUTHORIZED, LabSite

pytestmark = [pytest.mark.live, pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk of its own")]


@pytest.fixture
def site(tmp_path: Path, daemons: Daemons) -> LabSite:
    made = LabSite(tmp_path, daemons)
    made.init()
    return made


def mounted(site: LabSite, *, size: str, command: str) -> list[str]:
    """A shell's words: on a small disk with a copy of the lab in the place of its folder, ``command``."""
    script = (
        f'cp -a "$1" "$1.copy" && mount -t tmpfs -o mode=700,size={size} lab "$1" && '
        f'cp -a "$1.copy"/. "$1" && {command}'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh", str(site.path)]


def inside(pid: int, script: str, *words: str) -> str:
    """What a shell prints in the mount namespace of a process."""
    command = ["nsenter", "--target", str(pid), "--mount", "sh", "-c", script, "sh", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_full_disk_admits_nobody_and_the_same_invitation_works_later(site: LabSite, daemons: Daemons) -> None:
    tracker = [sys.executable, "-m", "rpcsys.tracker", "--lab", '"$1"', "--host", "127.0.0.1", "--port", str(site.port)]
    command = f"exec {' '.join(tracker)} --port-end {site.port + 1}"
    site.tracker = daemons.launch("tracker", mounted(site, size="160k", command=command))
    site.tracker.await_ready_line()
    line = site.invite("bo")
    pid = site.tracker.ready["pid"]
    inside(pid, 'dd if=/dev/zero of="$1/filler" bs=1k 2>/dev/null; :', str(site.path))
    refused = site.run("bo", "login", typed=line, status=UNAUTHORIZED)
    assert "disk is full; nothing was changed" in refused
    said = "127.0.0.1 could not join: cannot write"
    wait_until(lambda: said in site.tracker.stderr(), START_S, "the tracker says it, too")
    assert "Traceback" not in site.tracker.stderr()
    assert site.who(KEEPER)["member"] == KEEPER
    assert "bo" not in {name for name, row in site.members().items() if row.get("joined")}
    inside(pid, 'rm "$1/filler"', str(site.path))
    site.run("bo", "login", typed=line)
    assert site.who("bo")["member"] == "bo"


def test_a_tracker_says_that_its_disk_cannot_be_written(site: LabSite) -> None:
    tracker = f"{sys.executable} -m rpcsys.tracker --port 0 --host 127.0.0.1"
    command = f'mount -o remount,ro "$1" && exec {tracker} --lab "$1"'
    done = subprocess.run(
        mounted(site, size="1m", command=command),
        capture_output=True, text=True, timeout=60, check=False, env=site.environment(KEEPER),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert f"cannot write {site.path / 'lab.sqlite'}: Read-only file system" in done.stderr
    assert json.loads(site.place(KEEPER).read_text())["member"] == KEEPER
