"""Releasing the pages of libraries on a board whose system shows other addresses than it uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpcsys.module import toolchain
from tests.live.emulated import MACHINES
from tests.native import bare, lay_out
from tests.server.sandbox.test_preload import CODE, big_library

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", MACHINES)
def test_a_library_is_whole_after_its_pages_are_released(name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    library = big_library(tmp_path, toolchain.find(machine.triple).command())
    board = lay_out(tmp_path / "board")
    first, _, _, _, again, none = json.loads(bare(board, CODE, library, python=str(machine.python)))
    assert first == again == [1024 + 4096, 41]
    assert none == 0
