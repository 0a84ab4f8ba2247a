"""A program that replaces OpenSSH's client."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rpcsys.board import ssh

#: The script for each command of a connection: the first command holds it open, later ones run their own words.
HOLDS = """#!/bin/sh
for command; do :; done
case $command in
*rpcsys-ready*exec\\ cat*) echo welcome; echo rpcsys-ready; exec cat >/dev/null ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program's path; write a script to it. Opening a connection times out after a second."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(ssh, "CONNECT_S", 1)
    return program


def run_script(fake: Path, later: str) -> None:
    """The connection opens, and every later command runs ``later``."""
    fake.write_text(HOLDS + later + "\n")
