"""A program in the place of OpenSSH's client."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rpcsys.board import ssh

#: What each command of a connection becomes: the first holds it, a later one ends with the words it is to run.
HOLDS = """#!/bin/sh
for command; do :; done
case $command in
*rpcsys-ready*exec\\ cat*) echo welcome; echo rpcsys-ready; exec cat >/dev/null ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program; write to it. A second stands for thirty, so that nobody waits for long."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(ssh, "CONNECT_S", 1)
    return program


def says(fake: Path, later: str) -> None:
    """The connection opens, and every later command does this."""
    fake.write_text(HOLDS + later + "\n")
