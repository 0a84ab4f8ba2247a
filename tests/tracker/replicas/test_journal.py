"""The journal's bytes: what is packed comes back, and nothing from outside does harm."""

from __future__ import annotations

import json
import zlib
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.replicas import journal
from rpcsys.tracker.replicas.engine import MAX_VALUE
from rpcsys.tracker.replicas.journal import Fold
from tests.tracker.replicas.simulation import granted

WAITING = {"ticket": "7@a", "arrival": 7, "key": "rpi4", "labels": {"cores": ">=4"}, "user": "mo", "since": 5.0}
OVER = {
    **dict.fromkeys(("lease", "key", "server", "user", "address", "outcome", "reason", "fault"), "a"),
    "epoch": 3,
    "since": 1.0,
    "held_s": 2.0,
    "cleaned": {},
}
RECORDS = [
    granted(1.0, 4, 12),
    HistoryEntry(2.0, "waiting", WAITING),
    HistoryEntry(2.5, "set_aside", {"server": "a", "reason": "b", "failures": 3, "pause_s": 60.0, "until": 62.0}),
    HistoryEntry(3.0, "over", {**OVER, "lease": "4-12"}),
    HistoryEntry(4.0, "of a later version", {"any": ["thing"]}),
]


def packed(content: Any) -> bytes:
    return zlib.compress(json.dumps(content).encode())


def test_records_come_back() -> None:
    assert journal.unpack(journal.pack(RECORDS)[0]) == RECORDS


def test_a_fold_has_what_holds_and_the_highest_numbers() -> None:
    fold = Fold()
    fold.fold(RECORDS, 9)
    assert [kind for kind, _ in fold.live] == ["waiting", "set_aside"]
    assert (fold.through, fold.at, fold.epoch, fold.arrivals) == (9, 4.0, 4, 12)


def test_a_snapshot_says_the_same_as_the_journal() -> None:
    fold = Fold()
    fold.fold([granted(float(number), number, number) for number in range(1, 9000)], 77)
    snapshot, pieces = fold.snapshot()
    assert len(pieces) == snapshot.pieces > 3
    assert max(map(len, pieces)) <= MAX_VALUE
    again = Fold.of(snapshot, pieces)
    assert again == fold
    assert list(again.live) == list(fold.live)


def test_entries_are_cut_to_fit() -> None:
    random = Random(1)
    plain = [HistoryEntry(1.0, "gone", {"server": "a", "reason": "x" * 100_000}) for _ in range(40)]
    any_text = [HistoryEntry(1.0, "gone", {"server": "a", "reason": random.randbytes(50_000).hex()}) for _ in range(20)]
    for records in (plain, any_text):
        data, count = journal.pack(records)
        assert 1 < count < len(records)
        assert len(data) <= MAX_VALUE
        assert journal.unpack(data) == records[:count]
    assert journal.pack(RECORDS)[1] == len(RECORDS)
    assert journal.pack([HistoryEntry(1.0, "gone", {"server": "a", "reason": "x" * journal.MAX_TEXT})])[1] == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "lacks its end"),
        (b"nothing", "damaged"),
        (zlib.compress(b"[" * 100_000), "damaged"),
        (zlib.compress(b"x" * (journal.MAX_TEXT + 1)), "more than"),
        (journal.pack(RECORDS)[0][:-9], "lacks its end"),
        (packed([]), "version"),
        (packed({"v": journal.FORMAT + 1, "records": []}), "update it"),
        (packed({"v": 1}), "no list"),
        (packed({"v": 1, "records": [[1.0, "over"]]}), "wrong form"),
        (packed({"v": 1, "records": [[1.0, "over", {}]]}), "lacks what it needs"),
        (packed({"v": 1, "records": [[1.0, "waiting", {**WAITING, "labels": {"": "x"}}]]}), "lacks what it needs"),
        (packed({"v": 1, "records": [["soon", "gone", {"server": "a"}]]}), "at"),
    ],
)
def test_what_is_no_entry_is_one_error(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        journal.unpack(data)


_leaf = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9)
_json = _leaf | st.lists(_leaf, max_size=4) | st.dictionaries(st.text(max_size=9), _leaf, max_size=4)


@given(
    st.binary()
    | st.builds(packed, _json)
    | st.builds(lambda records: packed({"v": 1, "records": records}), st.lists(_json, max_size=3))
)
def test_any_bytes_are_records_or_one_error(data: bytes) -> None:
    try:
        records = journal.unpack(data)
    except ProtocolError:
        return
    Fold().fold(records, 1)


@given(
    st.sampled_from([record.kind for record in RECORDS]),
    st.dictionaries(st.text(max_size=9), _json, max_size=2),
    st.data(),
)
def test_records_with_any_fields_fold_or_are_refused(kind: str, fields: dict[str, Any], data: st.DataObject) -> None:
    whole = next(record.details for record in RECORDS if record.kind == kind)
    details = {**whole, **fields, data.draw(st.sampled_from(sorted(whole))): data.draw(_json)}
    try:
        records = journal.unpack(packed({"v": 1, "records": [[1.0, kind, details]]}))
    except ProtocolError:
        return
    Fold().fold(records, 1)
