"""``rpcsys split``: divide a model over devices, print the expected times, write the library."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from rpcsys import graph, progress
from rpcsys.cli import options
from rpcsys.cli.run import load_inputs
from rpcsys.errors import UsageError

if TYPE_CHECKING:
    from rpcsys.graph._plan.devices import PlanDevice

Placed: TypeAlias = "tuple[graph.Stages, Sequence[PlanDevice]]"  # stages, and the device of each
_HELP = """Divide MODEL, an .onnx file, over devices: find the best cuts, print the expected times, write the library.

\b
--over cpu:0,cpu:1               CPUs of this machine, one each (cpu:0-3: several together)
--over cpu:0,key:edge            and a device leased by its key
--over edge:cpu:0,edge:opencl:0  devices inside a board leased by its key
--over 2                         this machine's CPUs in two shares

The stages are tried on the devices themselves. Devices that would slow the model down are left out.

The library runs the whole model. A stage for another machine is written to a file beside the library; rpcsys deploy
puts it on a server there.
"""


@click.command(help=_HELP, short_help="Divide a model over devices, and write the library.")
@click.option("--over", "devices", metavar="DEVICES", required=True, help="The devices, with commas between.")
@click.option("-o", "--output", type=options.FilePath(dir_okay=False),
              help="The library (else MODEL.so in this folder).")  # fmt: skip
@click.option("--goal", type=click.Choice(["throughput", "latency"]), default="throughput", show_default=True,
              help="The most frames a second, or the least time for one.")  # fmt: skip
@click.option("--at", "cuts", metavar="CUT", multiple=True,
              help="Cut here instead: a node's name or place, a tensor, or several with commas between; repeatable.",
)  # fmt: skip
@click.option("--inputs", "arrays", metavar="FILE.npz", type=options.FILE,
              help="The inputs to run it with (else random arrays).")  # fmt: skip
@options.tracker
@click.option("--encode", metavar="HOW", default="", help="How arrays cross: float16, int8, zlib, int8+zlib, …")
@click.option("--exact", is_flag=True, help="Stages that give the same bits as the whole.")
@click.option("--keep-order", is_flag=True, help="The first device gets the first stage, and so on.")
@click.option("--fallback", is_flag=True, help="Run a server's stages here while the server is away.")
@click.option("--wait-timeout", type=options.Number(0, min_open=True), default=60.0, show_default=True,
              help="Seconds to wait for a device.")  # fmt: skip
@click.argument("model", type=options.FILE)
def split(
    model: Path, devices: str, output: Path | None, cuts: Sequence[str], arrays: Path | None, tracker: str | None,
    encode: str, exact: bool, fallback: bool, wait_timeout: float, **more: Any,
) -> None:  # fmt: skip
    """The command; `_HELP` describes it."""
    options.check_file(model, "model")
    library = output or Path(f"{model.stem}.so")
    options.check_output(library, ".so", "a library is", model)
    given = load_inputs(arrays) if arrays is not None else None
    lab = options.tracker_address(tracker)
    if cuts:
        stages, used = _by_hand(model, devices, cuts, exact)
    else:
        terms = {**more, "exact": exact, "encode": encode, "wait_s": wait_timeout, "tracker": lab}
        stages, used = _found(model, devices, given, terms)
    from rpcsys.graph._plan.plan import export

    parts = export(stages, used, library, tracker=lab, encode=encode, fallback=fallback)
    click.echo(f"wrote {library}")
    places = {stage.name: device.name for stage, device in zip(stages, used, strict=True)}
    for name, part in parts.items():
        click.echo(f"wrote {part}, for {places[name]}; type: rpcsys deploy {part} --to HOST:PORT")


def _found(model: Path, devices: str, given: Mapping[str, Any] | None, terms: Mapping[str, Any]) -> Placed:
    over = int(devices) if devices.isdecimal() and len(devices) < 6 else devices.split(",")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the plan includes it
        with progress.steps() as step:
            plan = graph.auto_cuts(model, over, inputs=given, say=step.say, **terms)
    click.echo(str(plan), nl=False)
    return plan.stages, plan.devices


def _by_hand(model: Path, devices: str, cuts: Sequence[str], exact: bool) -> Placed:
    stages = graph.split(model, [_cut(text) for text in cuts], exact=exact)
    from rpcsys.graph._plan.devices import parse

    used = parse(devices.split(","))
    if len(used) != len(stages):
        counts = f"{len(cuts)} cut(s) make {len(stages)} stages, and --over names {len(used)} device(s)"
        raise UsageError(f"{counts}: give a device for each stage")
    graph.show(stages)
    return stages, used


def _cut(text: str) -> int | str | tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    places = [int(name) for name in names if name.isdecimal() and len(name) < 10]
    if len(places) > 1:
        each = " ".join(f"--at {place}" for place in places)
        raise UsageError(f"--at {text}: commas join tensors to one cut; for a cut at each place type: {each}")
    if places and len(names) == 1:
        return places[0]
    return names[0] if len(names) == 1 else names
