"""What reports say of boards: names in all of them; where a test failed, output, state and what was left."""

from __future__ import annotations

from typing import Dict, Iterator, List, Tuple

import pytest

from rpcsys.pytest_plugin.fixture_board import BOARDS, FixtureBoard


def extend(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add what is known of the test's boards to its report: sections for people, properties for JUnit's file."""
    boards = list(_boards(item))
    if report.when == "setup":
        _add_properties(item, report, [pair for board in boards for pair in _names(board)])
    if report.when == "teardown":
        for board in boards:
            if board.left:
                _add(item, report, board, {"left (seen at teardown)": board.left})
        item.stash[BOARDS] = {}  # what they printed is not kept for the whole run
    elif report.failed:
        for board in boards:
            board.failed = True
            _add(item, report, board, board.at_failure())


def _boards(item: pytest.Item) -> Iterator[FixtureBoard]:
    """The test's own boards, and those that it shares."""
    for node in item.listchain():
        for fixture, boards in node.stash.get(BOARDS, {}).items():
            if node is item or fixture in getattr(item, "fixturenames", ()):
                yield from boards


def _names(board: FixtureBoard) -> List[Tuple[str, object]]:
    return [("board", board.name), ("board_key", board.key)]


def _add(item: pytest.Item, report: pytest.TestReport, board: FixtureBoard, texts: Dict[str, str]) -> None:
    report.sections += [(f"board {board.name}: {title}", text) for title, text in texts.items()]
    _add_properties(item, report, [(f"board_{title.split()[0]}", text) for title, text in texts.items()])


def _add_properties(item: pytest.Item, report: pytest.TestReport, pairs: List[Tuple[str, object]]) -> None:
    item.user_properties += pairs  # later reports of this test have them from here
    report.user_properties += pairs
