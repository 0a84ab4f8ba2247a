"""Results at the tracker: kept across restarts, bounded, and no trouble of their file is the tracker's."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from rpcsys.tracker import results
from rpcsys.tracker.results import FILE, MAX_WAITING, SharedResults
from rpcsys.wire.control import Answer
from rpcsys.wire.results import FindResults, KeepResults

ONE, TWO = "1" * 64, "2" * 64


def ask(shared: SharedResults, question: results.Question) -> Answer:
    return asyncio.run(shared.answer(question, 1, "ann"))


@pytest.mark.parametrize("kept", [True, False])
def test_results_are_found_and_in_a_directory_also_by_the_next_run(tmp_path: Path, kept: bool) -> None:
    directory = tmp_path / "state" if kept else None
    shared = SharedResults(directory)
    assert ask(shared, FindResults(7, (ONE,))) == Answer(7, True, fields={"found": {}})
    assert ask(shared, KeepResults(8, {ONE: [1e-6, 2.0]})) == Answer(8, True)
    assert ask(shared, FindResults(9, (ONE, TWO))).fields == {"found": {ONE: [1e-6, 2.0]}}
    shared.close()
    again = SharedResults(directory)
    assert ask(again, FindResults(1, (ONE,))).fields == {"found": {ONE: [1e-6, 2.0]} if kept else {}}
    again.close()


def test_nothing_is_made_before_the_first_question(tmp_path: Path) -> None:
    SharedResults(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_no_client_would_take_is_left_out(tmp_path: Path) -> None:
    shared = SharedResults(tmp_path)
    ask(shared, KeepResults(1, {ONE: [1.0], TWO: [0.0]}))
    assert ask(shared, FindResults(1, (ONE, TWO))).fields == {"found": {ONE: [1.0]}}
    shared.close()


def test_a_broken_file_is_one_line_and_is_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE).write_text("this is no database, and it is longer than the head of one would be" * 10)
    shared = SharedResults(tmp_path)
    with caplog.at_level(logging.INFO, "rpcsys.tracker.results"):
        for _ in range(3):
            answer = ask(shared, FindResults(1, (ONE,)))
            assert (answer.ok, answer.error) == (False, "ResultsUnusable")
        (tmp_path / FILE).unlink()
        assert not ask(shared, FindResults(1, (ONE,))).ok
        monkeypatch.setattr(shared, "_retry_at", 0.0)
        assert ask(shared, FindResults(1, (ONE,))).ok
        assert len(caplog.records) == 1
        assert ask(shared, KeepResults(1, {ONE: [1.0]})).ok
    first, second = (record.message for record in caplog.records)
    assert first.startswith(f"the results in {tmp_path / FILE} cannot be used (")
    assert first.endswith("or move the file away")
    assert second.startswith("results are kept again")
    shared.close()


def test_questions_that_wait_are_bounded(tmp_path: Path) -> None:
    shared, go_on = SharedResults(tmp_path), threading.Event()
    shared._thread.submit(go_on.wait, 60)

    async def flood() -> list[Answer]:
        asking = [shared.answer(FindResults(1, (ONE,)), conn, "") for conn in (1, 1, *range(2, MAX_WAITING + 2))]
        asked = asyncio.gather(*asking)
        await asyncio.sleep(0)
        go_on.set()
        return await asked

    answers = asyncio.run(flood())
    assert [answer.ok for answer in answers] == [True, False, *[True] * (MAX_WAITING - 1), False]
    assert {answer.error for answer in answers if not answer.ok} == {"Busy"}
    shared.close()


def test_without_a_directory_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MAX_IN_MEMORY", 400_000)
    shared = SharedResults(None)
    names = [f"{number:064x}" for number in range(1500)]
    for start in range(0, len(names), 100):
        ask(shared, KeepResults(1, {name: [1.2345678901234567] * 50 for name in names[start : start + 100]}))
    found = [name for name in names if ask(shared, FindResults(1, (name,))).fields["found"]]
    assert len(found) < 1000
    assert names[-1] in found
    shared.close()
