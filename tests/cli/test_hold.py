"""The commands around holds, without a lab: their arguments, and one line for each mistake."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest

from rpcsys.cli.hold import TimeSpan
from tests.cli.conftest import Command
from tests.client.test_attaching import ABOUT


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), ("1d", 86400), ("0", 0),
                          ("2w", 0), ("h", 0), ("-1h", 0), ("1e3", 0), ("9" * 400, 0)],
)  # fmt: skip
def test_times(text: str, seconds: float) -> None:
    if seconds:
        assert TimeSpan().convert(text, None, None) == seconds
    else:
        with pytest.raises(click.BadParameter, match="is no time: write 30m, 2h or 1d"):
            TimeSpan().convert(text, None, None)


def test_holds_are_listed(tmp_path: Path, rpcsys: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    os.makedirs(tmp_path / "rpcsys" / "holds")
    (tmp_path / "rpcsys" / "holds" / "one.json").write_text(json.dumps(ABOUT))
    head, row = rpcsys("holds").stdout.splitlines()
    assert head.split() == ["KEY", "SERVER", "SINCE", "LEFT", "FILE"]
    assert (row.split()[:2], row.split()[-2]) == (["rpi4", "desk-7"], "over")
