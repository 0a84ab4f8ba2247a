"""``python -m benchmarks.chip_plans [NETWORK …]``: plans over a board's CPU and its OpenCL device, against each alone.

The board is this machine, its OpenCL device PoCL with one thread. It needs some minutes for each network: TVM and PoCL
compile the stages of every plan that is tried.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figures import median
from benchmarks.peers.ours import board_on_all_cores
from rpcsys import graph
from rpcsys.graph import samples

BUILD = Path(__file__).resolve().parents[1] / "native" / "tvm_opencl" / "build.py"
#: Those with large fully connected layers, which both runtimes read at the speed of the memory.
NETWORKS = ("bvlc_alexnet", "zfnet512", "vgg19")
OPENCL = graph.Tvm({"kind": "opencl", "device": "cpu", "host": {"kind": "llvm"}})
WARM, FRAMES, ROUNDS = 4, 16, 3


def main() -> int:
    """Print a line for each network; the exit status is 1 if one gains nothing, or is off by more than a tenth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", nargs="*", default=NETWORKS, help=f"of {', '.join(samples.names())}")
    good = True
    with tempfile.TemporaryDirectory() as folder, board(Path(folder)) as address:
        for name in parser.parse_args().network:
            figures = measured(name, address)
            gain = figures["plan"] / max(figures["cpu:0"], figures["opencl:0"])
            off = figures["expected"] / figures["plan"] - 1
            rates = ", ".join(f"{what} {rate:.2f}" for what, rate in figures.items())
            print(f"{name}: frames/s: {rates}; gain {gain:.2f}, expected {off:+.0%}", flush=True)
            good = good and gain > 1 and abs(off) <= 0.1
    return 0 if good else 1


@contextmanager
def board(folder: Path) -> Iterator[str]:
    """A server on this machine that lends PoCL's device; its address."""
    os.environ.update(POCL_MAX_PTHREAD_COUNT="1", POCL_AFFINITY="1", POCL_CACHE_DIR=str(folder))
    library = folder / "libtvm_opencl.so"
    subprocess.run([sys.executable, str(BUILD), str(library)], check=True)
    flags = ("--key", "", "--devices", "opencl", "--load-library", str(library))
    with board_on_all_cores(folder, *flags) as address:
        yield address


def measured(name: str, address: str) -> dict[str, float]:
    """Frames a second of the plan's pipeline, of each device alone, and as the plan expects."""
    model = samples.light_model(name, seed=1)
    devices = [f"{address}/cpu:0", f"{address}/opencl:0"]
    plan = graph.auto_cuts(model, devices, rounds=2, say=lambda text: print(f"  {text}", flush=True))
    whole = graph.split(model, [])
    frame = samples.random_inputs([{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in whole.inputs])
    lender = plan.devices[0].on_board().tracker
    alone: Mapping[str, Any] = {
        "cpu:0": graph.Leased("alone", lender, target=graph.OnnxRuntime(threads=1), device="cpu:0"),
        "opencl:0": graph.Leased("alone", lender, target=OPENCL, device="opencl:0"),
    }
    rates: dict[str, list[float]] = {"plan": [], **{device: [] for device in alone}}
    for _ in range(ROUNDS):
        with plan.pipeline() as pipeline:
            rates["plan"].append(rate(pipeline, frame))
        for device, target in alone.items():
            with graph.Pipeline(whole, {whole[0].name: target}) as pipeline:
                rates[device].append(rate(pipeline, frame))
    return {**{what: median(each) for what, each in rates.items()}, "expected": plan.throughput}


def rate(pipeline: graph.Pipeline, frame: Any) -> float:
    """Frames a second, once the pipeline is full."""
    for outcome in pipeline.run([frame] * WARM, stop_on_error=True):
        del outcome
    begin = time.perf_counter()
    count = sum(1 for _ in pipeline.run([frame] * FRAMES, stop_on_error=True))
    return count / (time.perf_counter() - begin)


if __name__ == "__main__":
    sys.exit(main())
