"""Last words are believed with the right secret only, wherever they stand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.wire import last_words
from rpcsys.wire.pinned_keys import PinnedMatchKey

KEY = PinnedMatchKey("rpi4", "1f" * 32, "5c" * 16)
SAID = last_words.encode(KEY, "MemoryLimit", "the session took more than 512 MiB")
FIELDS = {"type": "MemoryLimit", "message": "the session took more than 512 MiB", "retryable": False, "fault": "user"}


@given(st.binary(max_size=3000) | st.just(SAID) | st.just(last_words.MAGIC * 9))
def test_they_are_found_behind_anything(before: bytes) -> None:
    assert last_words.find(before + SAID, KEY) == FIELDS
    assert last_words.find((before + SAID)[-last_words.MAX_BYTES :], KEY) == FIELDS


@given(st.integers(0, len(SAID) - 1), st.integers(1, 255))
def test_a_changed_byte_is_not_believed(place: int, change: int) -> None:
    changed = bytearray(SAID)
    changed[place] ^= change
    assert last_words.find(bytes(changed), KEY) is None


@given(st.binary(max_size=300))
def test_nothing_else_is_believed(data: bytes) -> None:
    assert last_words.find(data, KEY) is None
    assert last_words.find(SAID + data[:1] + b"x", KEY) is None
    assert last_words.find(SAID[: len(data)][:-1], KEY) is None


def test_another_sessions_are_not_believed() -> None:
    assert last_words.find(SAID, KEY._replace(secret="5d" * 16)) is None
    assert last_words.find(SAID, KEY._replace(pin="1e" * 32)) is None


def test_a_long_sentence_is_cut_to_what_a_client_looks_through() -> None:
    for text in ("x" * 10_000, "\N{PILE OF POO}" * 10_000, "\n\x00" * 5000, "\ud800" * 900):
        said = last_words.encode(KEY, "SessionLost", text)
        assert len(said) <= last_words.MAX_BYTES
        found = last_words.find(said, KEY)
        assert found is not None
        assert found["type"] == "SessionLost"
