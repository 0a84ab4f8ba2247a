"""Stores of a tracker in a directory of the test's own, and questions about their file."""

import asyncio
import json

import pytest

from rpcsys.tracker.history import HistoryReader
from rpcsys.tracker.store import HistoryStore

NOW = 1_700_000_000.0


@pytest.fixture
def opened(tmp_path):
    """Opens stores in one directory and closes them."""
    made = []

    def make(**options):
        made.append(HistoryStore(tmp_path, **{"history_days": 90, "clock": lambda: NOW, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ask(path, question):
    history = HistoryReader(path)
    try:
        answer = asyncio.run(history.answer(question))
    finally:
        history.close()
    assert json.loads(json.dumps(answer.to_json()))
    return answer
