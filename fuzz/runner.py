"""Feeds damaged inputs to targets for a while, and tells what went wrong so that it can be done again."""

from __future__ import annotations

import faulthandler
import random
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fuzz.mutations import damage
from fuzz.targets import Target

#: Growth of the process that no parser of messages needs; the session's reader may hold large blocks for reuse.
MAX_GROWTH = 256 << 20
#: One input that takes longer than this hangs, on any machine: the stacks are printed and the process ends.
HANG_S = 60.0
# The descriptor itself: what stands in for the stream under a test has none.
_STDERR = 2


@dataclass(frozen=True)
class Finding:
    """An input for which a target broke the sentence. ``target`` and ``seed`` make it again."""

    target: str
    seed: int
    data: bytes
    problem: str


def make(target: Target, seed: int) -> tuple[bytes, random.Random]:
    """The input of number ``seed``, and the randomness with which it is fed."""
    rng = random.Random(f"{target.name} {seed}")
    data = rng.choice(target.seeds)
    if rng.random() < 0.98:
        data = damage(data, target.seeds, rng)
    if target.seal is not None and rng.random() < 0.5:
        data = target.seal(data)
    if rng.random() < 0.3:
        data += rng.choice(target.seeds)
    return data, rng


def try_one(target: Target, seed: int) -> Finding | None:
    """Feed one input; what it shows."""
    data, rng = make(target, seed)
    faulthandler.dump_traceback_later(HANG_S, exit=True, file=_STDERR)
    try:
        target.feed(data, rng)
    except target.documented:
        pass
    except Exception:  # noqa: BLE001 - whatever is not documented is what is looked for
        return Finding(target.name, seed, data, traceback.format_exc())
    finally:
        faulthandler.cancel_dump_traceback_later()
    return None


def run(targets: Sequence[Target], seconds: float, first_seed: int) -> Iterator[Finding | int]:
    """Findings as they come; at the end the number of inputs tried. Targets take turns."""
    end = time.monotonic() + seconds
    before = resident()
    seed = first_seed
    while time.monotonic() < end:
        for target in targets:
            finding = try_one(target, seed)
            if finding is not None:
                yield finding
        seed += 1
        if resident() - before > MAX_GROWTH:
            yield Finding("all", seed, b"", f"memory grew by {(resident() - before) >> 20} MiB")
            break
    yield (seed - first_seed) * len(targets)


def resident() -> int:
    """Bytes of memory this process has now (Linux; elsewhere 0)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * 4096
    except OSError:
        return 0
