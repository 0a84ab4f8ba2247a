from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.pytest_plugin.conftest import LabRun

pytestmark = pytest.mark.live

SOURCE = """
import pytest, subprocess

@pytest.fixture
def model(board):
    board.run(print, "loaded")
    raise RuntimeError("no model")

def test_fails(board):
    board.run(print, "hello from the board")
    board.run(lambda: subprocess.Popen(["sleep", "60"]) and None)
    assert board.info["key"] == "another"

def test_passes(board):
    board.run(print, "not shown")

def test_model(model, board):
    pass
"""


def test_a_failed_test_says_what_its_board_did(lab_run: LabRun) -> None:
    """With workers, too: in the terminal and in JUnit's file."""
    status, printed = lab_run(SOURCE, "--boards", "pico", "-n", "1", "--junitxml=junit.xml")
    assert status == 1
    section = printed.partition("_ test_fails[pico] _")[2].partition("short test summary")[0]
    assert "board pico-0: printed" in section
    assert "hello from the board\n" in section
    assert "board pico-0: state" in section
    assert "load: " in section
    assert "board pico-0: left (seen at teardown)" in section
    assert "processes: sleep" in section
    assert "not shown" not in printed
    assert "loaded\n" in printed.partition("ERROR at setup of test_model[pico]")[2]

    cases = ET.parse(lab_run.folder / "junit.xml").getroot().iter("testcase")
    found = {case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")} for case in cases}
    assert found["test_passes[pico]"] == {"board": "pico-0", "board_key": "pico"}
    failed = found["test_fails[pico]"]
    assert list(failed) == ["board", "board_key", "board_printed", "board_state", "board_left"]
    assert failed["board_printed"] == "hello from the board"
    assert "processes: sleep" in failed["board_left"]
    assert found["test_model[pico]"]["board_printed"] == "loaded"
