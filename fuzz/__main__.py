"""``python -m fuzz``: exit status 0 without findings, else 1."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Sequence

from fuzz.runner import Finding, make, run
from fuzz.targets import TARGETS

_NAMES = [target.name for target in TARGETS]
#: The limit of findings: a broken parser fails on many inputs.
_ENOUGH = 10


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m fuzz", description="accepts, or raises a documented error")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="N", help="how long (default: 30)")
    parser.add_argument("--seed", type=int, metavar="N", help="the first input's number (default: at random)")
    parser.add_argument("--target", choices=_NAMES, action="append", help="only this parser; may be repeated")
    parser.add_argument("--once", action="store_true", help="try only the input of --seed, and print it")
    args = parser.parse_args(argv)
    targets = [target for target in TARGETS if target.name in (args.target or _NAMES)]
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    if args.once:
        for target in targets:
            data, rng = make(target, seed)
            print(target.name, data)
            try:
                target.feed(data, rng)
            except target.documented as error:
                print("refused:", error)
        return 0
    return _report(run(targets, args.seconds, seed), seed)


def _report(results: Iterable[Finding | int], seed: int) -> int:
    findings = 0
    tried = 0
    for result in results:
        if isinstance(result, Finding):
            findings += 1
            print(f"{result.target}: seed {result.seed}\n{result.data!r}\n{result.problem}")
            print(f"again: python -m fuzz --once --target {result.target} --seed {result.seed}\n")
            if findings == _ENOUGH:
                break
        else:
            tried = result
    print(f"{tried or 'not all'} inputs from seed {seed} on: {findings or 'no'} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
