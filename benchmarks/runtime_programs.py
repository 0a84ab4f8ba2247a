"""``python -m benchmarks.runtime_programs``: models in LiteRT, OpenVINO and IREE, against each runtime's own program.

A session measures the model, and then the runtime's benchmark program does, in turns, with one thread, all on one core.
Both load it anew for each turn: where its memory lies lasts as long as it is loaded, and changes its time by percents.
The difference is the median of the turns' differences, with its 95 % interval. The goal is 3 %.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.runtimes import CASES, WIDTH
from rpcsys import lab
from rpcsys.intervals import median_interval

ROWS = 128  # a call takes some milliseconds, of which two programs print hundredths
WARM_UP, CALLS = 5, 50  # of each turn
LONGEST_S = 120.0


def litert(model: Path, folder: Path) -> float:
    """Milliseconds of a call by ``litert-benchmark``: the median."""
    report = folder / "litert.json"
    words = ["--model", str(model), "--num_threads", "1", "--warmup_runs", str(WARM_UP), "--num_runs", str(CALLS)]
    run("litert-benchmark", *words, "--result_json", str(report))
    return float(json.loads(report.read_text())["latency"]["median_ms"])


def openvino(model: Path, folder: Path) -> float:
    """Milliseconds of a call by ``benchmark_app``: the median.

    Its latency is what OpenVINO counts inside of a call. What an iteration takes beside that, on average, is added.
    """
    words = ["-m", str(model), "-d", "CPU", "-hint", "none", "-api", "sync", "-nthreads", "1", "-niter", str(CALLS)]
    words += [
        "-infer_precision",
        "f32",
        "-inference_only",
        "false",
        "-report_type",
        "no_counters",
        "-report_folder",
        str(folder),
        "-json_stats",
    ]
    run("benchmark_app", *words)
    report = json.loads((folder / "benchmark_report.json").read_text())
    found = {name: float(value) for name, value in report["execution_results"].items()}
    iteration = found["total execution time (ms)"] / found["total number of iterations"]
    return found["latency (ms)"] + iteration - found["avg latency"]


def iree(model: Path, _: Path) -> float:
    """Milliseconds of a call by ``iree-benchmark-module``: the median."""
    words = [f"--module={model}", "--function=main", "--device=local-sync", f"--input={ROWS}x{WIDTH}xf32=1"]
    words += ["--benchmark_min_time=1x", f"--benchmark_repetitions={CALLS}", "--benchmark_format=json"]
    found = json.loads(run("iree-benchmark-module", *words))["benchmarks"]
    (middle,) = [each for each in found if each.get("aggregate_name") == "median"]
    return float(middle["real_time"]) * {"ns": 1e-6, "us": 1e-3, "ms": 1.0}[middle["time_unit"]]


PROGRAMS: dict[str, Callable[[Path, Path], float]] = {"LiteRT": litert, "OpenVINO": openvino, "IREE": iree}


def run(program: str, *words: str) -> str:
    """What one of the environment's programs prints."""
    command = [str(Path(sys.executable).with_name(program)), *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST_S)
    return done.stdout


def difference(tracker: Any, path: Path, program: Callable[[], float]) -> float:
    """By how much our time is longer than the program's: medians of as many calls."""
    with tracker.request("board") as session:
        evaluator = session.load_module(path, threads=1).time_evaluator(number=1, repeat=CALLS)
        ours = 1e3 * evaluator(np.ones((ROWS, WIDTH), "float32")).median
    return ours / program() - 1


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m benchmarks.runtime_programs", description=__doc__)
    words.add_argument("--turns", type=int, default=15, help="turns of each runtime (default: 15)")
    turns = words.parse_args().turns
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name, lab.Lab({"board": 1}, server_args=["--tvm", "off"]) as started:
        folder = Path(name)
        for runtime, (suffix, package, write, _) in CASES.items():
            if find_spec(package) is None:
                print(f"{runtime}: not measured, without the package {package}")
                continue
            path = folder / f"{runtime.lower()}{suffix}"
            write(path, ROWS)
            with started.connect() as tracker:
                program = functools.partial(PROGRAMS[runtime], path, folder)
                found = [difference(tracker, path, program) for _ in range(turns)]
            between = median_interval(found)
            told = "too few turns for an interval" if between is None else f"{between[0]:+.1%} to {between[1]:+.1%}"
            print(f"{runtime}: {median(found):+.1%} ({told})", flush=True)


if __name__ == "__main__":
    main()
