"""``python -m benchmarks.canaries``: how a canary's times spread here, and after how many runs a CPU quota is named.

One board that is never harmed runs beside one that gets a quota of 97 % of a CPU (cgroups, version 1 or 2, as root).
Their runs take turns, each in a process of its own as on a server, and go through the tracker's own test. ``--series
FILE`` appends the logarithms of the first board's times, in hundred-thousandths: what tests/tracker/canary_noise.json
has. On a machine that is never quiet all runs are disturbed: ``--all`` counts those, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from rpcsys.server.canary import run
from rpcsys.server.canary.setting import BUILTIN
from rpcsys.server.sandbox import messages, processes
from rpcsys.server.sandbox.messages import CANARY, Job
from rpcsys.tracker.speed import SpeedTest

#: Parents of cgroups, and how a quota is written there: microseconds of each 100 ms.
_QUOTAS = (("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "{}"), ("/sys/fs/cgroup", "cpu.max", "{} 100000"))
MOST, LONGEST = 20, 2000  # times the promised runs, and runs, after which a board counts as never named


@contextlib.contextmanager
def quota(share: float) -> Iterator[Path]:
    """A cgroup with a share of a CPU. Raises OSError: none can be made here."""
    for parent, name, form in _QUOTAS:
        if not Path(parent, "cgroup.procs").exists():
            continue
        folder = Path(parent, f"rpcsys-canaries-{os.getpid()}")
        folder.mkdir()
        try:
            (folder / name).write_text(form.format(round(share * 100_000)))
            yield folder
            return
        finally:
            folder.rmdir()
    raise OSError("no cgroups are mounted at /sys/fs/cgroup")


def one_run(cgroup: Path | None = None) -> dict[str, Any]:
    """A run of the built-in canary in a new process, in ``cgroup`` if there is one; its report."""
    ours, theirs = messages.pair()

    def child() -> None:
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text("0")
        run.serve(theirs, Job(CANARY, b"", "/", "key", "", options={"canary": BUILTIN, "cpus": []}))

    try:
        problem = processes.try_in_copy(child)
        if problem:
            raise OSError(problem)
        return messages.parse(messages.receive(ours)[0], messages.OF_CANARY)
    finally:
        ours.close()
        theirs.close()


class BenchedBoard:
    """A board with its test; ``everything``: disturbed runs count, too."""

    def __init__(self, everything: bool) -> None:
        self.test = SpeedTest(BUILTIN)
        self.everything = everything
        self.runs, self.disturbed = 0, 0
        self.logarithms: list[float] = []

    def run(self, cgroup: Path | None = None) -> None:
        """Have the canary run once."""
        report = one_run(cgroup)
        self.runs += 1
        self.disturbed += report["disturbed"]
        if self.everything or not report["disturbed"]:
            self.logarithms.append(math.log(report["seconds"]))
            self.test.take(float(self.runs), report["seconds"], report["throttled"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the protocol; the exit status is 1 if the harmed board is not named, or the other one is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.canaries", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="runs of each before the quota (default: 200)")
    parser.add_argument("--share", type=float, default=0.97, help="the quota, of a CPU (default: 0.97)")
    parser.add_argument("--series", type=Path, metavar="FILE", help="append the unharmed board's logarithms, as JSON")
    parser.add_argument("--all", action="store_true", help="count disturbed runs, too")
    arguments = parser.parse_args(argv)
    print(machine.line(machine.describe()), flush=True)
    well, harmed = BenchedBoard(arguments.all), BenchedBoard(arguments.all)
    for _ in range(arguments.runs):
        well.run()
        harmed.run()
    if arguments.series is not None:
        middle = median(well.logarithms)
        with arguments.series.open("a") as file:
            file.write(json.dumps([round(1e5 * (value - middle)) for value in well.logarithms]) + "\n")
    for name, board in (("one", well), ("other", harmed)):
        spread, promise = board.test.spread, board.test.promise
        print(f"{name}: {board.disturbed} of {board.runs} runs disturbed, spread {spread:.2%}, promise {promise} runs")
    if harmed.test.promise is None:
        print("too few runs count: is this machine ever quiet?")
        return 1
    with quota(arguments.share) as cgroup:
        named = _until(well, harmed, slow=True, cgroup=cgroup)
    print(f"a quota of {arguments.share:.0%}: named after {named or 'too many'} runs, {_by(harmed)}")
    cleared = _until(well, harmed, slow=False)
    print(f"without it: well again after {cleared or 'too many'} runs; the other one: {_by(well)}")
    return int(not named or not cleared or well.test.named)


def _until(well: BenchedBoard, harmed: BenchedBoard, *, slow: bool, cgroup: Path | None = None) -> int:
    """Run both until the harmed one is ``slow``, or is not; the runs of that, 0 for too many."""
    for count in range(1, min(LONGEST, MOST * (harmed.test.promise or 0))):
        well.run()
        harmed.run(cgroup)
        if harmed.test.named is slow:
            return count
    return 0


def _by(board: BenchedBoard) -> str:
    by = {"its times": board.test.slow, "what Linux counts of its quota": board.test.capped}
    return "by " + " and ".join(name for name, says in by.items() if says) if board.test.named else "not named"


if __name__ == "__main__":
    sys.exit(main())
