"""``rpcsys demo``: a lab on this machine, a leased device, a real network, and the queue before, during and after."""

from __future__ import annotations

import importlib.util
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rpcsys import progress
from rpcsys.cli.timings import time_model
from rpcsys.client import Session, Tracker, connect_tracker
from rpcsys.errors import RpcsysError, UsageError
from rpcsys.graph import samples
from rpcsys.lab import Lab
from rpcsys.query import terminal

if TYPE_CHECKING:
    from rpcsys.graph.samples import Arrays

NETWORK = "resnet50"
KEY = "cpu"
SERVERS = 2
REPEAT = 20
SETTLE_S = 10.0

TOLERANCE = 1e-4  # two builds of one runtime agree to the last bits; a wiring mistake differs by far more


@click.command(short_help="See it work: a lab on this machine, and ResNet-50 on one of its devices.")
def demo() -> None:
    """Start a tracker and two device servers here, lease one, run ResNet-50 on it, and print the queue.

    Everything stays on this machine, and is removed at the end.
    """
    _require("onnx", "onnxruntime")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rpcsys-demo-") as folder:
        path = _make_model(Path(folder))
        terminal.print_heading("A lab on this machine")
        with Lab({KEY: SERVERS}) as lab:
            terminal.print_pairs([(each.name, f"127.0.0.1:{each.port}  pid {each.pid}") for each in lab.daemons])
            with lab.connect() as tracker, connect_tracker(lab.tracker_address, user="another") as another:
                _queue(tracker, "before: every device is free")
                with tracker.request(KEY) as session:
                    _use(session, path)
                    _compete(tracker, another)
                _settle(tracker)
                _queue(tracker, "after: every device is free again")
    click.echo(f"\ndone in {time.monotonic() - began:.1f} s; nothing is left running")


def _require(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        lacking = " and ".join(missing)
        raise UsageError(f"the demo runs a network with {lacking}, which this Python does not have; {samples.INSTALL}")


def _make_model(folder: Path) -> Path:
    terminal.print_heading(f"A network: {NETWORK} with random weights")
    model = samples.light_model(NETWORK)
    path = folder / f"{NETWORK}.onnx"
    samples.save(model, path)
    terminal.print_pairs([("file", terminal.megabytes(path.stat().st_size)), ("nodes", str(len(model.graph.node)))])
    return path


def _use(session: Session, path: Path) -> None:
    terminal.print_heading("A leased device")
    host, port = session.address
    machine = "{system} on {arch}, {cores} cores".format(**session.info["machine"])
    terminal.print_pairs([("device", f"{host}:{port}, session process {session.info['pid']}"), ("machine", machine)])
    with progress.bar("upload and load", "B") as advance:
        model = session.load_module(path, progress=advance)
    feed = samples.random_inputs(model.inputs)
    outputs = model.run(feed)
    worst = _difference(outputs, samples.run_here(path, feed))
    terminal.print_pairs(
        [
            *(("in", f"{name}  {terminal.array_text(value)}") for name, value in feed.items()),
            *(("out", f"{name}  {terminal.array_text(value)}") for name, value in outputs.items()),
            ("here", f"the same run by onnxruntime without a session: largest absolute difference {worst:.3g}"),
        ]
    )
    args = [session.array(feed[spec["name"]]) for spec in model.inputs]
    with progress.bar("timing", "run") as advance:
        timing = time_model(model, args, REPEAT, advance)
    terminal.print_pairs([("time", f"{timing}")])


def _difference(outputs: Arrays, expected: Arrays) -> float:
    worst = max(float(abs(outputs[name] - expected[name]).max()) for name in expected)
    if not worst <= TOLERANCE:
        raise RpcsysError(f"the device's outputs differ from the local run by {worst:.3g} (allowed: {TOLERANCE:g})")
    return worst


def _compete(tracker: Tracker, another: Tracker) -> None:
    """Lease the other device, show the waiting request of another user, and then serve it."""
    waiting = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        with tracker.request(KEY, wait_timeout=SETTLE_S):
            turn = thread.submit(another.request, KEY, wait_timeout=SETTLE_S, on_queued=lambda _: waiting.set())
            waiting.wait(SETTLE_S)
            _queue(tracker, "meanwhile: both devices are leased, another user waits")
        turn.result().close()


def _queue(tracker: Tracker, moment: str) -> None:
    terminal.print_heading(f"The queue, {moment}")
    terminal.print_indented(tracker.text_summary())


def _settle(tracker: Tracker) -> None:
    """Wait until the released devices are free again: cleaned up, and offered again."""
    deadline = time.monotonic() + SETTLE_S
    while tracker.summary()["queue_info"].get(KEY, {"free": 0, "pending": 0})["free"] != SERVERS:
        if time.monotonic() > deadline:
            raise RpcsysError(f"the devices were not free again {SETTLE_S:g} s after their sessions had ended")
        time.sleep(0.05)
