"""The frames of the raw tracker clients."""

import pytest

from benchmarks.peers.trackers import frame, frames

MESSAGES = [[6], 0, [0, ["127.0.0.1", 9090, "k:1-2"]]]
STREAM = b"".join(map(frame, MESSAGES))


def test_frames_are_found_in_one_read():
    assert frames(STREAM) == (MESSAGES, b"")


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_frames_are_found_in_two_reads_cut_anywhere(cut):
    first, rest = frames(STREAM[:cut])
    second, left = frames(rest + STREAM[cut:])
    assert (first + second, left) == (MESSAGES, b"")
