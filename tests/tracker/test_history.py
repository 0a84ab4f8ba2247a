"""Questions about the history: past leases, and usage."""

import asyncio
import json

import pytest

from rpcsys.tracker.history import MAX_WAITING, HistoryReader
from rpcsys.wire import control
from tests.tracker import entries
from tests.tracker.stores import NOW, ask


def test_a_past_lease_has_all_its_fields(opened):
    first = opened()
    first.note(entries.granted("a-1", at=NOW, waited_s=2.5, priority=3, limit_s=60.0, user="ann"))
    first.note(entries.begun("a-1", at=NOW + 1))
    first.note(entries.limited("a-1", 90.0, at=NOW + 2))
    first.note(entries.over("a-1", at=NOW + 9, since=NOW, held_s=9.0, outcome="lost", reason="its client vanished"))
    first.close()
    (lease,) = ask(first.path, control.History(1)).fields["leases"]
    assert lease == {
        "lease": "a-1",
        "epoch": 1,
        "key": "rpi4",
        "server": "board",
        "user": "ann",
        "address": "10.0.0.5",
        "how": "ours",
        "since": NOW,
        "begun": NOW + 1,
        "ended": NOW + 9,
        "held_s": 9.0,
        "limit_s": 90.0,
        "waited_s": 2.5,
        "priority": 3,
        "outcome": "lost",
        "reason": "its client vanished",
        "fault": "",
        "cleaned": {"processes": 1},
    }


def test_history_by_key_user_server_and_time_in_pages(opened):
    first = opened()
    for number in range(100):
        key, user = ("rpi4", "gpu")[number % 2], ("ann", "bob", "")[number % 3]
        first.note(entries.over(f"x-{number}", at=NOW + number, key=key, user=user, server=f"board-{number % 4}"))
    first.close()

    def leases(**wanted):
        found, before = [], None
        while True:
            answer = ask(first.path, control.History(1, **wanted, limit=7, before=before)).fields
            found += [int(lease["lease"][2:]) for lease in answer["leases"]]
            before = answer["before"]
            if before is None:
                return found

    assert leases() == list(range(99, -1, -1))
    assert leases(key="gpu") == list(range(99, 0, -2))
    assert leases(user="bob") == list(range(97, 0, -3))
    assert leases(user="10.0.0.5") == list(range(98, 1, -3))  # without a name
    assert leases(server="board-3", key="gpu", user="ann") == list(range(99, 0, -12))
    assert leases(since=NOW + 90, until=NOW + 95) == [94, 93, 92, 91, 90]
    assert leases(since=NOW + 1000) == []


def test_an_answer_fits_a_frame(opened):
    first = opened()
    for number in range(3000):
        first.note(entries.over(f"x-{number}", at=NOW, reason="\N{SNOWMAN}" * 250))
    first.close()
    answer = ask(first.path, control.History(1, limit=4096))
    assert len(json.dumps(answer.to_json())) < 1 << 20
    assert 100 < len(answer.fields["leases"]) < 3000
    assert answer.fields["before"]


def test_usage_by_user_and_key(opened):
    first = opened()
    for number in range(60):
        user = ("ann", "bob", "ann")[number % 3]
        first.note(entries.granted(f"x-{number}", at=NOW, waited_s=1.0))
        first.note(
            entries.over(f"x-{number}", at=NOW + 600 * number, user=user, held_s=10.0, fault="" if number else "dead")
        )
    first.close()
    found = ask(first.path, control.Usage(1)).fields
    assert found["since"] == NOW // 3600 * 3600
    assert found["usage"] == [
        {"user": "ann", "key": "rpi4", "leases": 40, "held_s": 400.0, "waited_s": 40.0, "faults": 1},
        {"user": "bob", "key": "rpi4", "leases": 20, "held_s": 200.0, "waited_s": 20.0, "faults": 0},
    ]
    assert not found["more"]
    (bob,) = ask(first.path, control.Usage(1, user="bob", since=NOW + 18_000)).fields["usage"]
    assert bob["leases"] == 10
    assert ask(first.path, control.Usage(1, key="gpu")).fields == {"usage": [], "since": None, "more": False}


@pytest.mark.parametrize("since", [0, 0.5, 1e15, 2**53, 1e308])
def test_since_may_be_any_time(opened, since):
    first = opened()
    first.note(entries.over("x", at=NOW))
    first.close()
    found = ask(first.path, control.Usage(1, since=since)).fields["usage"]
    assert found == ask(first.path, control.Usage(1, since=float(since))).fields["usage"]
    assert len(found) == (since < NOW)
    assert len(ask(first.path, control.History(1, since=since)).fields["leases"]) == (since < NOW)
    assert len(ask(first.path, control.History(1, until=since)).fields["leases"]) == (since > NOW)


def test_a_question_that_takes_too_long_is_refused(opened, monkeypatch):
    first = opened()
    for number in range(2000):
        first.note(entries.over(f"x-{number}", at=NOW))
    first.close()
    monkeypatch.setattr("rpcsys.tracker.history.MAX_S", -1.0)
    monkeypatch.setattr("rpcsys.tracker.history._STEPS", 10)
    answer = ask(first.path, control.History(7, user="nobody", key="rpi4"))
    assert (answer.id, answer.ok, answer.error) == (7, False, "TooLong")


def test_an_unreadable_file_is_refused_and_reported(tmp_path):
    told = []
    history = HistoryReader(tmp_path / "none", told.append)
    answer = asyncio.run(history.answer(control.Usage(3)))
    history.close()
    assert (answer.id, answer.error, len(told)) == (3, "HistoryUnreadable", 1)


def test_waiting_questions_are_bounded(opened):
    path = opened().path

    async def all_at_once():
        history = HistoryReader(path)
        asked = [history.answer(control.Usage(number)) for number in range(MAX_WAITING + 5)]
        answers = await asyncio.gather(*asked)
        history.close()
        return answers

    errors = [answer.error for answer in asyncio.run(all_at_once())]
    assert errors == [""] * MAX_WAITING + ["Busy"] * 5
