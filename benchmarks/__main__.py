"""``python -m benchmarks``: run cases and print the comparisons."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.case import Case
from benchmarks.cases import all_cases
from benchmarks.figures import Row, table
from benchmarks.harness import FULL, ONCE, QUICK, harness, run_folder


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen cases; the exit status is 1 only with --check and a missed goal."""
    parser = command_line()
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with run_folder() as folder:
        cases = chosen(all_cases(folder), arguments.case)
        if not cases:
            parser.error(f"no case begins with {' or '.join(arguments.case)}; --list shows them all")
        if arguments.list:
            print("\n".join(case.name for case in cases))
            return 0
        return run(cases, arguments, folder)


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="rpcsys and its peers, side by side.")
    parser.add_argument("case", nargs="*", help="only the cases with these prefixes")
    parser.add_argument("--quick", action="store_true", help="rough figures from a few rounds, in some minutes")
    parser.add_argument("--once", action="store_true", help="one round of each: whether every case runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE, too")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed or could not be measured")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    return parser


def chosen(cases: Sequence[Case], prefixes: Sequence[str]) -> list[Case]:
    """The cases with one of the prefixes; all cases without prefixes."""
    return [case for case in cases if not prefixes or case.name.startswith(tuple(prefixes))]


def run(cases: Sequence[Case], arguments: argparse.Namespace, folder: Path) -> int:
    where = machine.describe()
    print(machine.line(where), flush=True)
    begin = time.monotonic()
    effort = ONCE if arguments.once else QUICK if arguments.quick else FULL
    with harness(effort, show_progress, folder) as bench:
        rows = list(bench.run(cases))
    show_progress("")
    seconds = time.monotonic() - begin
    print(f"\n{table(rows)}\n\n{summary(rows)} ({seconds:.0f} s{', quick' if effort is not FULL else ''})")
    if arguments.json:
        arguments.json.write_text(json.dumps(report(where, rows, effort is not FULL), indent=1) + "\n")
    return 1 if arguments.check and not all_met(rows) else 0


def report(where: dict[str, str], rows: Sequence[Row], quick: bool) -> dict[str, Any]:
    """The run as JSON."""
    return {"machine": where, "quick": quick, "rows": [row.to_json() for row in rows]}


def all_met(rows: Sequence[Row]) -> bool:
    """Whether every goal was measured and met."""
    return all(row.passed for row in rows if row.goal is not None)


def summary(rows: Sequence[Row]) -> str:
    goals = [row for row in rows if row.goal is not None]
    met = sum(row.passed is True for row in goals)
    return f"{met} of {len(goals)} goals met"


def show_progress(text: str) -> None:
    """A line that overwrites itself, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
