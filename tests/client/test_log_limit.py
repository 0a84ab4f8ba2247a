"""How many of a device's lines are taken."""

from __future__ import annotations

from rpcsys.client.log_limit import MOST_LETTERS, MOST_LINES, REFILL_S, LogLimit
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader


def log(message):
    (frame,) = FrameReader().feed(b"".join(frames.encode(frames.LOG, 0, {"message": message})))
    return frame


def messages(taken):
    return [frame.get("message") for frame in taken]


def none():
    return 0


def test_all_is_taken_up_to_the_limit():
    limit = LogLimit()
    whole = "\n" * (MOST_LINES - 1)
    assert messages(limit.taken(log(whole), 0.0, none)) == [whole]
    assert limit.taken(log("one more"), 0.0, none) == []


def test_what_was_left_out_is_said_with_the_next_line():
    limit = LogLimit()
    assert limit.taken(log("x" * (MOST_LETTERS + 1)), 0.0, lambda: 4) == []
    assert messages(limit.taken(log("short"), 0.0, none)) == [
        "(5 lines are missing here: they came faster than they were read)",
        "short",
    ]
    assert messages(limit.taken(log("short"), 0.0, none)) == ["short"]


def test_it_is_refilled_with_time():
    limit = LogLimit()
    limit.taken(log("\n" * (MOST_LINES - 1)), 0.0, none)
    half = "\n" * (MOST_LINES // 2 - 1)
    assert limit.taken(log(half), REFILL_S / 4, none) == []
    assert messages(limit.taken(log(half), REFILL_S / 2, none))[1] == half
