"""``rpcsys profile``: the time of each operator of a model on a board, and a trace of its calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rpcsys import progress
from rpcsys.cli import options
from rpcsys.cli.one_session import of_one_session, opened
from rpcsys.cli.run import SEED, check_inputs, load_inputs
from rpcsys.errors import UsageError, printable
from rpcsys.graph import samples
from rpcsys.module import external
from rpcsys.query import terminal
from rpcsys.wire import device_names

_MOST_RUNS = 1000  # as a server allows


@click.command(short_help="Time of each operator of a model on a board.")
@of_one_session
@click.option("--device", metavar="KIND:N", default="", help="What of the board runs it (see query_tracker).")
@click.option("--threads", type=click.IntRange(1, device_names.MAX_THREADS),
              help="Threads of a call of a model (default: one for each CPU).")  # fmt: skip
@click.option("--runs", type=click.IntRange(1, _MOST_RUNS), default=10, show_default=True,
              help="How many calls, after two that do not count.")  # fmt: skip
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows of the table.")
@click.option("--by", type=click.Choice(["op", "type"]), default="op", show_default=True,
              help="A row for each operator, or for each type.")  # fmt: skip
@click.option("--trace", type=options.FilePath(dir_okay=False), help="Write a trace for ui.perfetto.dev here (.json).")
@click.option("--json", "as_json", is_flag=True, help="All figures as a line of JSON.")
@click.argument("model", type=options.FILE)
@click.argument("arrays", metavar="[INPUTS.npz]", type=options.FILE, required=False)
def profile(
    device: str, threads: int | None, runs: int, top: int, by: str, trace: Path | None, as_json: bool,
    model: Path, arrays: Path | None, **where: Any,
) -> None:  # fmt: skip
    """Run MODEL on a board with its runtime's own profiler, and print where the time of a call goes.

    Its operators are those that the runtime made of the model's. INPUTS.npz holds the model's inputs by name; without
    it they are random, from a fixed seed.

    The trace has a row of calls and one for each thread: open it at https://ui.perfetto.dev.
    """
    if device:
        device_names.parse(device)  # raises now
    options.check_file(model, "model")
    external.files_of(model)  # raises now, before a device is leased
    if trace is not None:
        _check_trace(trace, (model, arrays))
    given = load_inputs(arrays) if arrays is not None else None
    check_inputs(model, given)
    with opened(**where) as session:
        with progress.bar(f"loading {model.name}", "B") as advance:
            loaded = session.load_module(model, progress=advance, device=device, threads=threads or 0)
        feed = samples.random_inputs(loaded.inputs, SEED) if given is None else given
        args = [feed[each["name"]] for each in loaded.inputs if each["name"] in feed]
        with progress.steps() as step:  # it is one call: there is a clock, but nothing to count
            step.say(f"profiling {model.name}")
            found = loaded.profile(*args, runs=runs)
        name = printable(str(session.lease.get("server") or session.info["key"]))
    if as_json:
        file = {} if trace is None else {"trace": str(trace)}
        terminal.print_json({"device": name, "model": str(model), **found.to_json(), **file})
    else:
        terminal.say(f"{model.name} on {name}")
        terminal.say(found.table(top, by))
    if trace is not None:  # after the table, which is there even if this fails
        found.save_trace(trace)
        if not as_json:
            terminal.say(f"wrote {trace}: open it at https://ui.perfetto.dev")


def _check_trace(trace: Path, given: tuple[Path | None, ...]) -> None:
    """Raise `UsageError` now, before a device is leased, for a file that cannot be written, or that is an input."""
    if not trace.parent.is_dir():
        raise UsageError(f"--trace {trace}: there is no folder {trace.parent}")
    for path in given:
        if path is not None and trace.exists() and path.exists() and trace.samefile(path):
            raise UsageError(f"--trace {trace}: {path} would be overwritten; choose another name")
