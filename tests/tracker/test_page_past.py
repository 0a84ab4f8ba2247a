"""What the page asks of the history."""

from __future__ import annotations

import asyncio

from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.history import HistoryReader
from rpcsys.tracker.page_past import NO_HISTORY, PagePast
from tests.tracker import entries
from tests.tracker.stores import NOW, opened  # noqa: F401 (a fixture)

LEASE = f"5a3e0c11-{int(1000 * (NOW - 60))}"


def ask(path, question):
    history = HistoryReader(path)
    try:
        return asyncio.run(question(PagePast(history)))
    finally:
        history.close()


def test_a_boards_leases_and_events_come_last_first(opened) -> None:  # noqa: F811
    store = opened()
    for number in range(3):
        store.note(entries.over(f"x-{number}", at=NOW + number), entries.over(f"y-{number}", at=NOW, server="other"))
    store.note(HistoryEntry(NOW, "drained", {"server": "board", "by": "bo"}))
    store.note(HistoryEntry(NOW, "gone", {"server": "board", "reason": "its connection ended"}))
    store.note(HistoryEntry(NOW, "gone", {"server": "other", "reason": ""}))
    store.close()
    past = ask(store.path, lambda reader: reader.of_board("board"))
    assert [lease["lease"] for lease in past.leases] == ["x-2", "x-1", "x-0"]
    assert [(entry.kind, entry.details.get("by")) for entry in past.events] == [("gone", None), ("drained", "bo")]
    assert (past.problem, bool(past)) == ("", True)
    assert not ask(store.path, lambda reader: reader.of_board("nothing"))


def test_usage_of_a_key(opened) -> None:  # noqa: F811
    store = opened()
    store.note(entries.over("x-1", at=NOW, held_s=90.0), entries.over("x-2", at=NOW, user="bo", held_s=30.0))
    store.note(entries.over("x-3", at=NOW, key="gpu"))
    store.close()
    past = ask(store.path, lambda reader: reader.of_key("rpi4", NOW))
    assert [(row["user"], row["held_s"]) for row in past.usage] == [("ann", 90.0), ("bo", 30.0)]


def test_a_lease_is_found_by_its_name_alone(opened) -> None:  # noqa: F811
    store = opened()
    store.note(*(entries.over(f"x-{number}", at=NOW - 86_400) for number in range(50)))
    store.note(entries.over(LEASE, at=NOW, cleaned={"processes": ["sleep (7)"]}))
    store.close()
    (lease,) = ask(store.path, lambda reader: reader.of_lease(LEASE)).leases
    assert (lease["lease"], lease["cleaned"]) == (LEASE, {"processes": ["sleep (7)"]})
    for name in ("x", "x-", "x-²", f"other-{LEASE.partition('-')[2]}", "x-" + "9" * 40, "'; DROP TABLE leases; --1"):
        past = ask(store.path, lambda reader, name=name: reader.of_lease(name))
        assert (list(past.leases), past.problem) == ([], "")


def test_without_a_history_that_is_said() -> None:
    reader = PagePast(None)
    for past in (reader.of_board("b"), reader.of_key("k", NOW), reader.of_lease("x-1")):
        assert asyncio.run(past).problem == NO_HISTORY


def test_an_unreadable_history_is_said(tmp_path) -> None:
    for question in (lambda reader: reader.of_board("b"), lambda reader: reader.of_lease("x-1")):
        assert "cannot read its history" in ask(tmp_path / "none", question).problem
