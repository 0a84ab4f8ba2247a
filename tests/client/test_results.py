"""Results at a tracker, by its client."""

from __future__ import annotations

from typing import Any

import pytest

from rpcsys.client import results
from rpcsys.errors import NotSupported, ProtocolError
from rpcsys.wire.results import MAX_RESULTS, RESULTS, FindResults, KeepResults


class FakeLink:
    """A link to a tracker that keeps results in a dict."""

    def __init__(self) -> None:
        self.tracker: dict[str, Any] = {"capabilities": [RESULTS]}
        self.kept: dict[str, list[float]] = {}
        self.asked: list[str] = []

    def ask(self, op: str, *, timeout: float, **fields: Any) -> dict[str, Any]:
        assert 0 < timeout < 60
        self.asked.append(op)
        if op == "keep_results":
            self.kept.update(KeepResults.from_json({**fields, "id": 1}).results)
            return {"ok": True}
        wanted = FindResults.from_json({**fields, "id": 1}).identities
        return {"ok": True, "found": {each: self.kept[each] for each in wanted if each in self.kept}}


def test_any_number_is_kept_and_found_in_messages_of_bounded_size() -> None:
    link = FakeLink()
    kept = {f"{number:064x}": [float(number + 1)] for number in range(2 * MAX_RESULTS + 1)}
    results.keep(link, kept)
    assert results.find(link, [*kept, *kept, "f" * 64]) == kept
    assert link.asked == ["keep_results"] * 3 + ["find_results"] * 3
    assert results.find(link, []) == {}


@pytest.mark.parametrize("welcome", [{}, {"capabilities": None}, {"capabilities": ["why"]}])
def test_a_tracker_that_keeps_none_is_told_in_one_line(welcome: dict) -> None:
    link = FakeLink()
    link.tracker = welcome
    with pytest.raises(NotSupported, match=r"^the tracker is of a version that keeps no results: update .*$"):
        results.find(link, ["0" * 64])
    with pytest.raises(NotSupported):
        results.keep(link, {"0" * 64: [1.0]})


@pytest.mark.parametrize("found", [None, [], {"0" * 64: [-1.0]}, {"x": [1.0]}])
def test_an_answer_that_makes_no_sense_is_an_error(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    link = FakeLink()
    monkeypatch.setattr(link, "ask", lambda *_, **__: {"ok": True, "found": found})
    with pytest.raises(ProtocolError, match="the tracker's answer makes no sense"):
        results.find(link, ["0" * 64])


def test_what_was_not_asked_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    link = FakeLink()
    monkeypatch.setattr(link, "ask", lambda *_, **__: {"ok": True, "found": {"1" * 64: [1.0]}})
    assert results.find(link, ["0" * 64]) == {}
