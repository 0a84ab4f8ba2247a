"""What ``rpcsys push`` and ``pull`` print."""

from __future__ import annotations

import pytest

from rpcsys.cli import transfer
from rpcsys.client.transfers import TransferReport


def test_what_was_moved_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    transfer._say(TransferReport(1, 2_340_000, 7, ("odd\n\udcff",)))
    out, err = capsys.readouterr()
    assert out == "1 file, 2.3 MB, 7 unchanged\n"
    assert err.startswith("rpcsys: warning: left out (it is neither a file nor a folder, or its name is no text): odd")
    assert err.count("\n") == 1
