"""``rpcsys push`` and ``pull`` without a hold."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize("command", ["push", "pull"])
def test_a_shell_without_a_hold_is_told_how_to_get_one(
    command: str, rpcsys: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RPCSYS_LEASE", raising=False)
    done = rpcsys(command, "file")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "type: rpcsys shell --key KEY" in done.stderr
