"""``python -m benchmarks.runtime_programs``: models in LiteRT, OpenVINO and IREE, against each runtime's own program.

A session measures the model, and then the runtime's benchmark program does, in turns, with one thread, all on one core.
The difference is the median of the turns' differences, with its 95 % interval. The goal is 3 %.
"""

from __future__ import annotations

import argparse
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
    """Milliseconds of a call by ``benchmark_app``: the median."""
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
    return float(report["execution_results"]["latency (ms)"])


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


def differences(module: Any, program: Callable[[], float], turns: int) -> list[float]:
    """By how much our time is longer than the program's, turn by turn: medians of as many calls."""
    evaluator, x = module.time_evaluator(number=1, repeat=CALLS), np.ones((ROWS, WIDTH), "float32")
    return [1e3 * evaluator(x).median / program() - 1 for _ in range(turns)]


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
            with started.connect() as tracker, tracker.request("board") as session:
                module = session.load_module(path, threads=1)
                found = differences(module, lambda path=path, runtime=runtime: PROGRAMS[runtime](path, folder), turns)
            between = median_interval(found)
            told = "too few turns for an interval" if between is None else f"{between[0]:+.1%} to {between[1]:+.1%}"
            print(f"{runtime}: {median(found):+.1%} ({told})", flush=True)


if __name__ == "__main__":
    main()
