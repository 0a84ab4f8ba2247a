"""The cache parses frames as `rpcsys.wire.tracker` does, after any other frames."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.tracker import message_cache
from rpcsys.tracker.message_cache import MAX_REMEMBERED, MAX_REMEMBERED_BYTES, MessageCache
from rpcsys.wire import tracker
from rpcsys.wire.keys import MAX_MATCH_KEY


def plainly(frame):
    try:
        return tracker.parse_to_tracker(tracker.decode_json(frame))
    except ProtocolError as problem:
        return str(problem)


def read(cache, frame):
    try:
        return cache.read(frame)
    except ProtocolError as problem:
        return str(problem)


TEXTS = st.sampled_from(
    ["rpi4", "a:b", "rpi4:1", "rpi4:12", "rpi4:0-another", "", ":", "::1", 'q"', "\\", "ü:1", "a b"]
)
RANDOMS = st.sampled_from(["1", "12", "0.5", "ab-c", "", '"', "\\u0031", "ü", " ", ",", "x" * 300, "\n"])
OFFERS = st.builds(
    lambda key, port, prefix, random, rest: (
        json.dumps([3, key, [port, "@"], *rest]).replace('"@"', f'"{prefix}:{random}"').encode()
    ),
    TEXTS,
    st.sampled_from([1, 9090, "9090", -1]),
    st.sampled_from(["rpi4", "a:b"]),
    RANDOMS,
    st.sampled_from([[], [None], ["10.0.0.5"], ["::1"], ["rpi4:1"], ["rpi4:12"]]),
)
OTHERS = st.builds(
    lambda value: json.dumps(value).encode(),
    st.sampled_from(
        [[1], [7], [6], [4, "rpi4", "", 1], [4, "rpi4", "ann:1", 2], [4], [3, "rpi4"], {"op": "x", "id": 1}]
    ),
)


@given(st.lists(OFFERS | OTHERS | st.binary(max_size=20), max_size=30))
def test_the_cache_gives_the_same_messages(frames):
    cache = MessageCache()
    for frame in frames:
        assert read(cache, frame) == plainly(frame)


def test_an_offer_like_an_earlier_one_is_not_parsed(monkeypatch):
    cache = MessageCache()
    first = cache.read(b'[3, "rpi4", [9090, "rpi4:0.123"], null]')
    assert first == tracker.Put("rpi4", 9090, "rpi4:0.123")
    monkeypatch.setattr(message_cache, "decode_json", lambda frame: pytest.fail("no need to"))
    assert cache.read(b'[3, "rpi4", [9090, "rpi4:0.4567"], null]') == tracker.Put("rpi4", 9090, "rpi4:0.4567")


def test_only_the_end_of_a_match_key_counts_as_its_random_part():
    cache = MessageCache()
    for address in ("rpi4:12", "rpi4:13"):
        offer = tracker.Put("rpi4", 1, "rpi4:12", address)
        assert cache.read(json.dumps(offer.to_json()).encode()) == offer


def test_match_keys_of_cached_offers_are_never_too_long():
    assert MAX_REMEMBERED_BYTES + len(message_cache._OTHER) < MAX_MATCH_KEY


def test_repeated_frames_are_parsed_once():
    cache = MessageCache()
    frame = b'[4, "rpi4", "ann", 2]'
    assert cache.read(frame) == tracker.TvmRequest("rpi4", "ann", 2)
    assert cache.read(frame) is cache.read(frame)


def test_cached_frames_are_bounded_in_number_and_length():
    cache = MessageCache()
    for number in range(3 * MAX_REMEMBERED):
        cache.read(f'[4, "k{number}", "", 1]'.encode())
        cache.read(f'[3, "k{number}", [1, "k:{number}"], null]'.encode())
    long = "u" * MAX_REMEMBERED_BYTES
    cache.read(f'[4, "rpi4", "{long}", 2]'.encode())
    cache.read(f'[3, "rpi4", [1, "rpi4:1"], "{long}"]'.encode())
    for table in (cache._repeated, cache._alike):
        assert 0 < len(table) <= MAX_REMEMBERED
        assert not any(long in str(name) for name in table)


def test_invalid_frames_are_refused_again():
    cache = MessageCache()
    for _ in range(2):
        with pytest.raises(tracker.BadMessage):
            cache.read(b"[4]")
        with pytest.raises(ProtocolError):
            cache.read(b"[4")
