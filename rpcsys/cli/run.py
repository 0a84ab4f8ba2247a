"""``rpcsys run``: lease a device, run a model on it, time it, print its outputs."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rpcsys.cli import options
from rpcsys.client import Session, TimingResult, connect_tracker
from rpcsys.client.remote import RemoteModule
from rpcsys.errors import UsageError, printable
from rpcsys.graph import samples
from rpcsys.query import terminal

if TYPE_CHECKING:
    from rpcsys.graph.samples import Arrays

SEED = 0
_REQUEST_S = 1.0  # duration of one timing request: the progress bar moves about once a second


@click.command(short_help="Lease a device, run a model on it, time it, print.")
@click.option("--key", required=True, help="The kind of device to lease.")
@options.tracker
@click.option("--repeat", type=click.IntRange(1), default=10, show_default=True, help="How many runs to time.")
@click.option("--wait-timeout", type=click.FloatRange(0), help="Seconds to wait for a device (else no limit).")
@click.argument("model", type=options.FILE)
@click.argument("arrays", metavar="[INPUTS.npz]", type=options.FILE, required=False)
def run(
    key: str, tracker: str | None, repeat: int, wait_timeout: float | None, model: Path, arrays: Path | None
) -> None:
    """Lease a device, run MODEL on it, time it, print its outputs.

    MODEL is an .onnx file, or a library (.so): a tree of modules, or a Relax program that TVM has compiled.

    INPUTS.npz holds the model's inputs by name; without it they are random, from a fixed seed.
    """
    if not model.is_file():
        raise UsageError(f"no such model: {model}")
    given = load_inputs(arrays) if arrays is not None else None
    with connect_tracker(options.tracker_address(tracker)) as connection:
        with connection.request(key, wait_timeout=wait_timeout, on_queued=_say_place) as session:
            _run_on(session, model, given, repeat)


def _say_place(event: Mapping[str, Any]) -> None:
    line = f"  waiting for a device: place {event['position']} in the queue"
    held = event.get("holders") or ()
    if held:
        line += f", taken by {', '.join(dict.fromkeys(holder['user'] for holder in held))}"
    low, high = event.get("eta_s") or (0, 0)
    if high >= 1:
        line += f", {terminal.span(low)} to {terminal.span(high)} to go"
    terminal.say(printable(line), err=True)


def _run_on(session: Session, path: Path, given: Arrays | None, repeat: int) -> None:
    name = session.lease.get("server") or session.info["key"]
    terminal.say(f"device: {printable(str(name))} at {session.address[0]}:{session.address[1]}")
    with terminal.progress(f"loading {path.name}") as advance:
        model = session.load_module(path, progress=advance)
    feed = samples.random_inputs(model.inputs, SEED) if given is None else given
    click.echo(f"inputs: {f'random (seed {SEED})' if given is None else 'as given'}")
    terminal.print_pairs([(name, terminal.array_text(value)) for name, value in feed.items()])
    outputs = model.run(feed)
    click.echo("outputs:")
    terminal.print_pairs([(name, terminal.array_text(value)) for name, value in outputs.items()])
    on_device = [session.array(feed[spec["name"]]) for spec in model.inputs if spec["name"] in feed]
    with terminal.progress("timing") as advance:
        timing = time_model(model, on_device, repeat, advance)
    click.echo(f"time:   {timing}")


def load_inputs(path: Path) -> Arrays:
    """Every array of an ``.npz`` file by name. Raises `UsageError` for any other file."""
    import numpy as np

    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UsageError(f"{path} holds one array; inputs go by name: numpy.savez(path, name=array)")
        with archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is no .npz file of plain arrays: {error}") from None


def time_model(
    model: RemoteModule, args: Sequence[Any], repeat: int, advance: Callable[[int, int], None]
) -> TimingResult:
    """``repeat`` single runs, each timed on the device; calls ``advance(done, repeat)`` after each request."""
    results: list[float] = []
    while len(results) < repeat:
        longest = max(results, default=_REQUEST_S)
        count = min(repeat - len(results), max(1, int(_REQUEST_S / max(longest, 1e-6))))
        results += model.time_evaluator("main", number=1, repeat=count)(*args).results
        advance(len(results), repeat)
    return TimingResult(results)
