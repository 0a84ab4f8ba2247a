"""``python -m benchmarks.measuring aa|ab [COUNT]``: how often `rpcsys.measure.compare` is wrong, beside other ways.

``aa`` compares a native function, or an ONNX model, with itself; during every second comparison another process loads
the machine. ``ab`` compares the function with one that has 2 % more rounds. After each comparison the same number of
turns (at most 300 of each) runs once more, all of one and then all of the other, as benchmark tools run them, and is
judged

* by hyperfine's ratio of means with its deviation, by error propagation: different where the deviation does not
  reach 1;
* by the Welch test that hyperfine's scripts have, at 5 %;
* by pytest-benchmark's ``--benchmark-compare-fail`` with ``mean:2%`` or ``min:2%``: different where it would fail.

Each comparison is one line of JSON on standard output; a summary is the last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rpcsys
from benchmarks.peers.ours import KEY, board_on_all_cores
from rpcsys import measure
from rpcsys.client import Session
from rpcsys.graph import samples
from rpcsys.measure.schedule import numbers

SOURCE = Path(__file__).with_name("spin.c")
PLANTED = 0.02
LIMITS_S = {"aa": 8.0, "ab": 60.0}
COUNTS = {"aa": 1000, "ab": 100}
LEAST = {"aa": 0.02, "ab": 0.01}
MOST = 300  # turns of a function that the other ways are given
_LOAD = "import random, time\nwhile True:\n e = time.monotonic() + random.random()\n while time.monotonic() < e: pass\n time.sleep(random.random() / 4)"  # noqa: E501


def main(argv: Sequence[str] | None = None) -> int:
    """Run a protocol; exit status 1 where it misses what is promised."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measuring", description=__doc__.splitlines()[0])
    parser.add_argument("protocol", choices=COUNTS)
    parser.add_argument("count", nargs="?", type=int, help="of comparisons (aa: 1000, ab: 100)")
    parser.add_argument("--model", type=Path, help="with aa: an ONNX model in the function's place")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one, which is its seed, too")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what this process has started ends with it
    count = given.count or COUNTS[given.protocol]
    rows = []
    with tempfile.TemporaryDirectory() as folder, board_on_all_cores(Path(folder), "--key", KEY) as address:
        subject = given.model or compiled(Path(folder))
        for number in range(given.first, given.first + count):
            rows.append(row(given.protocol, number, address, subject))
            print(json.dumps(rows[-1]), flush=True)
    found = summary(given.protocol, rows)
    print(json.dumps(found), flush=True)
    return 0 if kept(given.protocol, found) else 1


def compiled(folder: Path) -> Path:
    """The library with the two functions."""
    library = folder / "spin.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)], check=True)
    return library


@contextlib.contextmanager
def load(wanted: bool) -> Iterator[None]:
    """Another process that works four fifths of its time."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", _LOAD])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def row(protocol: str, number: int, address: str, library: Path) -> dict[str, Any]:
    """One comparison, and what the other ways say of as many turns."""
    loaded = protocol == "aa" and number % 2 == 1
    second = "base" if protocol == "aa" else ("slower", "base")[number % 2]
    first = "slower" if protocol == "ab" and second == "base" else "base"
    subjects = [f"{library}@function={name}" if library.suffix == ".so" else str(library) for name in (first, second)]
    with load(loaded), rpcsys.connect(address, key=KEY) as session:
        begun = time.monotonic()
        found = measure.compare(
            session, subjects, least=LEAST[protocol], limit_s=LIMITS_S[protocol], patience_s=0, seed=number
        )
        took = time.monotonic() - begun
        turns = min(len(found.boards[0].blocks.seconds), MOST)
        ways = others(*one_after_another(session, library, (first, second), turns))
    judgement = found.judgements[0]
    change = judgement.effect.change if judgement.effect is not None else None
    return {
        "number": number, "loaded": loaded, "load": os.getloadavg()[0], "planted": planted(first, second),
        "verdict": judgement.verdict.value, "change": change, "seconds": round(took, 2), "turns": turns, **ways,
    }  # fmt: skip


def planted(first: str, second: str) -> float:
    """The change of the second function's time."""
    factors = {"base": 1.0, "slower": 1 + PLANTED}
    return factors[second] / factors[first] - 1


def one_after_another(
    session: Session, library: Path, names: Sequence[str], turns: int
) -> tuple[list[float], list[float]]:
    """The seconds of so many turns of the first function, and then of the second."""
    models = [session.load_module(library), session.load_module(library)]
    given = list(samples.random_inputs(models[0].inputs or []).values())
    calls = [
        (model[name] if library.suffix == ".so" else model, given) for model, name in zip(models, names, strict=True)
    ]
    number = numbers([min(session.time_turns(calls[:1], [0] * 5, [1])["seconds"])])[0]
    seconds = session.time_turns(calls, [0] * turns + [1] * turns, [number] * 2, 600.0)["seconds"]
    return seconds[:turns], seconds[turns:]


def others(first: list[float], second: list[float]) -> dict[str, int]:
    """What the other ways say: 1 for slower, -1 for faster, 0 for no difference."""
    from scipy import stats

    means = [statistics.fmean(each) for each in (first, second)]
    spread = [statistics.stdev(each) / mean for each, mean in zip((first, second), means, strict=True)]
    ratio = means[1] / means[0]
    deviation = ratio * (spread[0] ** 2 + spread[1] ** 2) ** 0.5
    welch = stats.ttest_ind(first, second, equal_var=False).pvalue < 0.05
    return {
        "hyperfine": side(ratio - 1) if abs(ratio - 1) > deviation else 0,
        "welch": side(ratio - 1) if welch else 0,
        "pytest_mean": beyond(means[0], means[1]),
        "pytest_min": beyond(min(first), min(second)),
    }


def side(difference: float) -> int:
    """1 for more time, -1 for less."""
    return 1 if difference > 0 else -1


def beyond(first: float, second: float) -> int:
    """Whether one is more than 2 % slower than the other, and which."""
    if second > first * (1 + PLANTED):
        return 1
    return -1 if first > second * (1 + PLANTED) else 0


WAYS = ("hyperfine", "welch", "pytest_mean", "pytest_min")
SIDES = {"faster": -1, "slower": 1}


def summary(protocol: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of verdicts, and how often each way names a difference, and the wrong side of one."""
    named = {"compare": [SIDES.get(each["verdict"], 0) for each in rows]}
    named.update({way: [each[way] for each in rows] for way in WAYS})
    truth = [each["planted"] for each in rows]
    known = [each for each in rows if each["change"] is not None]
    return {
        "protocol": protocol, "count": len(rows), "loaded": sum(each["loaded"] for each in rows),
        "verdicts": dict(Counter(each["verdict"] for each in rows)),
        "named": {way: sum(map(abs, said)) for way, said in named.items()},
        "wrong_side": {
            way: sum(said * side(true) < 0 for said, true in zip(each, truth, strict=True) if true)
            for way, each in named.items()
        },
        "covered": sum(each["change"][1] <= each["planted"] <= each["change"][2] for each in known),
        "median_s": statistics.median(each["seconds"] for each in rows),
        "longest_s": max(each["seconds"] for each in rows),
        "median_load": statistics.median(each["load"] for each in rows),
    }  # fmt: skip


def kept(protocol: str, found: dict[str, Any]) -> bool:
    """Whether what is promised holds: 1 % of A/A named at most; 95 % of A/B named, none with the wrong sign."""
    if protocol == "aa":
        return bool(found["named"]["compare"] <= found["count"] / 100)
    return bool(found["named"]["compare"] >= 0.95 * found["count"] and not found["wrong_side"]["compare"])


if __name__ == "__main__":
    sys.exit(main())
