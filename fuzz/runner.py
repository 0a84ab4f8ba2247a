"""Feeds damaged inputs to targets for some time and reports findings that can be reproduced."""

from __future__ import annotations

import faulthandler
import random
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fuzz.mutations import damage
from fuzz.targets import Target

#: The limit of the process's growth: readers keep large blocks for reuse, and the C library up to 1 GiB of them.
MAX_GROWTH = (1 << 30) + (256 << 20)
#: The limit for one input: after it the stacks are printed and the process ends.
HANG_S = 60.0
# The descriptor: pytest's replacement of sys.stderr has none.
_STDERR = 2


@dataclass(frozen=True)
class Finding:
    """An input for which a target violates the property. ``target`` and ``seed`` reproduce it."""

    target: str
    seed: int
    data: bytes
    problem: str


def make(target: Target, seed: int) -> tuple[bytes, random.Random]:
    """The input with the number ``seed``, and the random generator for feeding it."""
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
    """Feed one input; the finding, or None."""
    data, rng = make(target, seed)
    faulthandler.dump_traceback_later(HANG_S, exit=True, file=_STDERR)
    try:
        target.feed(data, rng)
    except target.documented:
        pass
    except Exception:  # noqa: BLE001 - any undocumented error is a finding
        return Finding(target.name, seed, data, traceback.format_exc())
    finally:
        faulthandler.cancel_dump_traceback_later()
    return None


def run(targets: Sequence[Target], seconds: float, first_seed: int) -> Iterator[Finding | int]:
    """Feed the targets in turn; yields findings, and at the end the number of inputs."""
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
    """The resident memory of this process in bytes (Linux; elsewhere 0)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * 4096
    except OSError:
        return 0
