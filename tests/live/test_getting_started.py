"""What a newcomer types, by docs/getting-started.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.device_files import ROOT
from tests.live.daemons import free_port, wait_until

STEP_S = 60.0


def blocks() -> list[str]:
    """The commands of the first section, block by block, without what `make` does."""
    text = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    section = text.split("\n## ")[1]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def test_the_first_five_minutes_are_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    environment, lab, look, shell = blocks()
    assert environment.splitlines()[0].split()[:2] == ["make", "demo"]
    port = free_port()
    bin_folder = Path(sys.executable).parent
    variables = {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "RPCSYS_TRACKER": f"127.0.0.1:{port}",  # in place of the default, which another test may use
        "SHELL": "/bin/sh",
    }

    def typed(text: str, shell: str = "sh -e") -> str:
        command = shlex.split(shell)
        done = subprocess.run(
            command, input=text, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=STEP_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    commands = [line.split("2>")[0].replace("9190", str(port)) for line in lab.splitlines()]
    daemons = [
        subprocess.Popen(shlex.split(command), cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    try:
        began = time.monotonic()
        for daemon, part in zip(daemons, ("tracker", "server"), strict=True):
            assert daemon.stdout is not None
            assert f'"ready": "{part}"' in daemon.stdout.readline()
        wait_until(lambda: "server:desk" in typed("query_tracker"), STEP_S, "the server is registered")
        assert "desk   1      1     0" in typed(look)
        held, inside = shell.split("\n", 1)
        printed = typed(inside, held)
        assert os.uname().machine in printed.splitlines()
        assert "softmaxout_1" in printed
        assert "time:   median" in printed
        assert "desk   1      1     0" in typed("query_tracker")  # given back
        assert time.monotonic() - began < 5 * 60
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            assert daemon.wait(STEP_S) == 0
            assert daemon.stdout is not None
            daemon.stdout.close()
