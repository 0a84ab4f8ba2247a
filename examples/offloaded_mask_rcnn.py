"""Mask R-CNN divided: the backbone on a device, the heads on an edge server.

    python examples/offloaded_mask_rcnn.py
    python examples/offloaded_mask_rcnn.py --size 256 --width 0.5 --frames 6 --clients 3

Devices and server are processes; the devices share one core, the server has another. Each way of running is measured
with one device and with several at once. Each frame's results are compared with those of the whole network on the
device. The program prints the tensors at the cut, their bytes with each encoding, and frames per second.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mask_rcnn import CUT, mask_rcnn  # beside this file

from rpcsys import graph, module
from rpcsys.client.deploying import Deployment

HEADS = "stage1"
ONE_THREAD = graph.OnnxRuntime(threads=1)
#: Way -> the library of a device, and whether several frames are in flight.
WAYS = {
    "all on the device": ("whole.so", False),
    "heads offloaded, one frame at a time": ("divided.so", False),
    "heads offloaded, frames in flight": ("divided.so", True),
}
ENCODINGS = ("float16", "int8", "int8+zlib")


def main() -> int:
    """Run the comparison, or one device with ``--device``."""
    arguments = command_line().parse_args()
    if arguments.device:
        return device(Path(arguments.device), arguments)
    with tempfile.TemporaryDirectory(prefix="offload-") as folder:
        return compared(Path(folder), arguments)


def command_line() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=512, help="pixels along a side of an image")
    parser.add_argument("--width", type=float, default=1.0, help="of the network's channels, as a share of ResNet-50's")
    parser.add_argument("--frames", type=int, default=8, help="for each device")
    parser.add_argument("--clients", type=int, default=3, help="devices at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE, too")
    parser.add_argument("--device", help=argparse.SUPPRESS)
    parser.add_argument("--in-flight", action="store_true", help=argparse.SUPPRESS)
    return parser


def compared(folder: Path, arguments: argparse.Namespace) -> int:
    """Build both sides, deploy the heads, and measure; the exit status is 1 if results differ."""
    stages = graph.split(mask_rcnn(arguments.size, width=arguments.width), [CUT])
    graph.show(stages)
    show_encodings(stages, arguments.size)
    devices, server = cores()
    with edge_server(folder, server) as where:
        build(stages, where, folder)
        rows = [
            (way, number, *measured(folder / library, in_flight, number, devices, arguments))
            for way, (library, in_flight) in WAYS.items()
            for number in sorted({1, arguments.clients})
        ]
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps([row[:3] for row in rows]))
    found = {digest for *_, digests in rows for digest in digests}
    print(f"\nresults of all: {'equal, bit for bit' if len(found) == 1 else 'DIFFERENT'}")
    return 0 if len(found) == 1 else 1


def cores() -> tuple[int, int]:
    """The core of the devices and the core of the server; the same if there is only one."""
    here = sorted(os.sched_getaffinity(0))
    return here[0], here[-1]


# ------------------------------------------------------------------ both sides


def build(stages: graph.Stages, where: str, folder: Path) -> None:
    """Export the devices' libraries and deploy the heads on the server."""
    remote = graph.Remote(serve="heads", address=where)
    both = graph.offload(stages, {"stage0": ONE_THREAD, HEADS: remote}, served=ONE_THREAD)
    module.export_library(both.device, folder / "divided.so")
    module.export_library(both.parts[HEADS], folder / "heads.so")
    module.export_library(graph.build(stages, {stage.name: ONE_THREAD for stage in stages}), folder / "whole.so")
    with Deployment(where) as deployment:
        deployment.put(folder / "heads.so")


@contextmanager
def edge_server(folder: Path, core: int) -> Iterator[str]:
    """Run a server with a folder for deployments on one core; its address."""
    flags = ["--host", "127.0.0.1", "--port", "0", "--key", "edge", "--deploy", str(folder / "deployed"), "--silent"]
    process = started([sys.executable, "-m", "rpcsys.server", *flags], core)
    try:
        assert process.stdout is not None
        yield "127.0.0.1:{}".format(json.loads(process.stdout.readline())["port"])
    finally:
        process.terminate()
        process.wait()


def started(command: Sequence[str], core: int) -> subprocess.Popen[str]:
    """Start a process on one core, with pipes for lines."""
    pinned = ["taskset", "--cpu-list", str(core), *command]
    return subprocess.Popen(pinned, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# ------------------------------------------------------------------ devices


def measured(
    library: Path, in_flight: bool, number: int, core: int, arguments: argparse.Namespace
) -> tuple[float, set[str]]:
    """The frames per second of ``number`` devices together, and the digests of their results."""
    command = [sys.executable, __file__, "--device", str(library), "--frames", str(arguments.frames)]
    command += ["--size", str(arguments.size), *(["--in-flight"] if in_flight else [])]
    devices = [started(command, core) for _ in range(number)]
    try:
        for each in devices:
            each.stdout.readline()  # warm
        began = time.perf_counter()
        for each in devices:
            each.stdin.write("go\n")
            each.stdin.flush()
        digests = {each.stdout.readline().strip() for each in devices}
        return number * arguments.frames / (time.perf_counter() - began), digests
    finally:
        for each in devices:
            each.kill()
            each.wait()


def device(library: Path, arguments: argparse.Namespace) -> int:
    """Run one device: a warm-up frame, then all frames after a line of input; print the digest of the results."""
    frames = [{"image": image(arguments.size, number)} for number in range(arguments.frames)]
    with module.load_module(library) as model:
        run = run_in_flight if arguments.in_flight else run_in_turn
        for _ in run(model, frames[:1]):
            print("warm", flush=True)
        sys.stdin.readline()
        digest = hashlib.sha256()
        for found in run(model, frames):
            for name in sorted(found):
                digest.update(np.ascontiguousarray(found[name]))
        print(digest.hexdigest(), flush=True)
    return 0


def run_in_turn(model: module.Module, frames: Sequence[Any]) -> Iterator[Any]:
    """Run each frame after the one before it has ended."""
    return (model.run(frame) for frame in frames)


def run_in_flight(model: module.Module, frames: Sequence[Any]) -> Iterator[Any]:
    """Run the backbone on a frame while the server runs the heads on earlier frames."""
    with graph.Pipeline(model) as pipeline:
        yield from pipeline.run(frames, stop_on_error=True)


def image(size: int, seed: int) -> np.ndarray[Any, Any]:
    """A frame of random pixels; the network has results for it, too."""
    return np.random.default_rng(seed).integers(0, 256, (1, 3, size, size), np.uint8)


# ------------------------------------------------------------------ tables


def show_encodings(stages: graph.Stages, size: int) -> None:
    """Print the effect of each encoding on one frame's features and on the results."""
    for how in ENCODINGS:
        remote = graph.Remote(serve="heads", encode={"roi_features": how})
        print(f"\n{how}\n{graph.weigh(stages, {HEADS: remote}, {'image': image(size, 0)})}", end="")


def show(rows: Sequence[tuple[str, int, float, set[str]]]) -> None:
    """Print frames per second, and their ratio to those of a device alone."""
    alone = {number: rate for way, number, rate, _ in rows if way == next(iter(WAYS))}
    print(f"\n{'':38}{'devices':>8}{'frames/s':>10}{'times':>7}")
    for way, number, rate, _ in rows:
        print(f"{way:38}{number:8}{rate:10.2f}{rate / alone[number]:7.2f}")


if __name__ == "__main__":
    sys.exit(main())
