"""What a leader holds back, and until when."""

from __future__ import annotations

from rpcsys.tracker.replicas.ledger import MOST_UNDER_WAY, JournalEntry, Ledger
from tests.tracker.replicas.simulation import granted

NOW = 10.0


def ledger(through: int = 7) -> Ledger[str]:
    return Ledger(through, valid_until=NOW + 1)


def taken(made: Ledger[str]) -> int:
    entry = made.entry()
    assert isinstance(entry, JournalEntry)
    return entry.number


def test_what_needs_no_record_is_said_at_once() -> None:
    made = ledger()
    assert not made.hold("read", NOW)
    assert made.idle


def test_what_follows_from_a_record_and_all_behind_it_waits() -> None:
    made = ledger()
    made.note(granted(1.0, 1, 1))
    assert made.hold("granted", NOW)
    assert made.hold("read", NOW)
    assert taken(made) == 8
    assert made.entry() is None
    entries, said = made.written(8, NOW)
    assert [(entry.number, len(entry.records)) for entry in entries] == [(8, 1)]
    assert said == ["granted", "read"]
    assert (made.idle, made.through) == (True, 8)


def test_entries_count_up_to_the_first_gap() -> None:
    made = ledger()
    numbers = []
    for number in range(1, 4):
        made.note(granted(1.0, number, number))
        made.hold(f"turn {number}", NOW)
        numbers.append(taken(made))
    assert made.written(numbers[2], NOW) == ([], [])
    entries, said = made.written(numbers[0], NOW)
    assert ([entry.number for entry in entries], said) == ([8], ["turn 1"])
    entries, said = made.written(numbers[1], NOW)
    assert ([entry.number for entry in entries], said) == ([9, 10], ["turn 2", "turn 3"])


def test_only_some_entries_are_under_way() -> None:
    made = ledger()
    for number in range(1, MOST_UNDER_WAY + 3):
        made.note(granted(1.0, number, number))
        made.entry()
    made.hold("last", NOW)
    assert made.held == ["last"]
    assert made.written(8, NOW)[1] == []
    assert taken(made) == 8 + MOST_UNDER_WAY  # with all that has gathered
    said = [text for number in range(9, 9 + MOST_UNDER_WAY) for text in made.written(number, NOW)[1]]
    assert said == ["last"]


def test_nothing_is_said_once_another_may_lead() -> None:
    made = ledger()
    made.note(granted(1.0, 1, 1))
    made.hold("granted", NOW)
    taken(made)
    entries, said = made.written(8, NOW + 2)
    assert (len(entries), said) == (1, [])
    assert made.hold("read", NOW + 2)
    assert made.renewed(NOW + 1.5, NOW + 2) == []
    assert made.renewed(NOW + 3, NOW + 2) == ["granted", "read"]
    assert not made.hold("read", NOW + 2.5)
