"""The streams in Python and in C agree; and a fuzzer that compares them finds where they do not."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import streams as compared
from fuzz.runner import run
from fuzz.targets import TARGETS
from rpcsys import stream
from rpcsys.errors import ProtocolError
from rpcsys.stream import PythonStream
from rpcsys.wire import frames

pytestmark = pytest.mark.skipif(stream.speedups is None, reason="the library is not built")

SHORT = [seed for seed in compared.SEEDS if len(seed) < 5000]


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(SHORT), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    st.integers(0, 1 << 32),
)
def test_any_bytes_give_the_same_frames_or_the_same_error(parts, flips, seed):
    data = bytearray(b"".join(parts))
    for at, byte in flips:
        data[at % len(data)] = byte
    with contextlib.suppress(ProtocolError):
        compared.feed(bytes(data), random.Random(seed))


@pytest.mark.parametrize("seed", compared.SEEDS)
def test_valid_frames_of_all_kinds(seed):
    for number in range(5):
        compared.feed(seed, random.Random(number))


@pytest.mark.slow
def test_for_a_minute():
    (target,) = [target for target in TARGETS if target.name == "streams"]
    *findings, tried = run([target], 60.0, random.SystemRandom().randrange(1 << 32))
    assert findings == []
    assert tried > 500


class Other(PythonStream):
    """A stream that is not as it should be, in one way."""

    def __init__(self, fault: str, sock: Any, *more: Any) -> None:
        super().__init__(sock, *more)
        self._fault = fault
        self._before: Any = None

    def receive(self, flags: int = 0) -> Any:
        try:
            frame: Any = super().receive(flags)
        except ProtocolError as error:
            if self._fault == "another error":
                raise ProtocolError(f"{error}!") from None
            raise
        if frame is None:
            return None
        if self._fault == "another flag":
            frame.flags ^= 128
        if self._fault == "a kept frame changes" and self._before is not None and self._before.buffers:
            self._before.buffers[0][:1] = b"?"
        if self._fault == "a frame is lost" and frame.kind == frames.PING:
            frame = super().receive(flags)
        self._before = frame
        return frame


@pytest.mark.parametrize("fault", ["another error", "another flag", "a kept frame changes", "a frame is lost"])
def test_a_difference_is_found(monkeypatch, fault):
    monkeypatch.setattr(stream, "NativeStream", lambda *of: Other(fault, *of))
    (target,) = [target for target in TARGETS if target.name == "streams"]
    assert any("AssertionError" in getattr(found, "problem", "") for found in run([target], 3.0, first_seed=0))
