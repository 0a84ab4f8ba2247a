"""``rpcsys run``: lease devices, or call a deployed module; run a model there, time it, print its outputs."""

from __future__ import annotations

import contextlib
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rpcsys import progress
from rpcsys.cli import options
from rpcsys.cli.timings import time_calls, time_model
from rpcsys.client import ServedModule, Session, TimingResult, attaching, connect, connect_tracker, inference
from rpcsys.client.inference import urls
from rpcsys.client.remote import RemoteModule
from rpcsys.errors import UsageError, printable
from rpcsys.graph import samples
from rpcsys.link import standing_key
from rpcsys.link.address import parse_address
from rpcsys.module import Module, declared, external
from rpcsys.module.kinds.remote import remote
from rpcsys.module.loading import SUFFIXES
from rpcsys.query import terminal
from rpcsys.wire import device_names
from rpcsys.wire.labels import operator_of

if TYPE_CHECKING:
    from rpcsys.client.tracker import Tracker
    from rpcsys.graph.samples import Arrays

SEED = 0
_HOW_ARRAYS = "write one with numpy.savez(path, name=array)"
_CONNECT_S = 30.0  # to an inference server, until it has described the model
_NOT_DIRECT = ("labels", "count", "priority", "wait_timeout", "tracker", "serve")  # options that ``--server`` excludes
_LEASED = ("key", "labels", "count", "priority", "session_timeout", "wait_timeout")  # options of a lease


@dataclass(frozen=True)
class Run:
    """What to do on each device, and where the results go."""

    feed: Arrays | None  # the inputs by name; None for random ones
    repeat: int
    as_json: bool
    outputs: Sequence[Path]  # a file for each device, or none
    device: str = ""  # of the board, such as opencl:0; "" for where the model says, else its CPU
    threads: int = 0  # of a call; 0 for as many as the model says


@click.command(short_help="Lease a device, run a model on it, time it, print.")
@click.option("--key", help="The kind of device to lease.")
@click.option("--label", "labels", metavar="K=V", multiple=True,
              help="A label that the device must have: arch=aarch64, 'onnxruntime>=1.22,<2'; repeatable.")  # fmt: skip
@click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="How many devices, all together; the model runs on each.")  # fmt: skip
@click.option("--device", metavar="KIND:N", default="",
              help="What of the board runs it: opencl:0, cuda:0, openvino:GPU (see query_tracker).")  # fmt: skip
@click.option("--threads", type=click.IntRange(1, device_names.MAX_THREADS),
              help="Threads of a call of a model (default: one for each CPU).")  # fmt: skip
@click.option("--server", metavar="HOST:PORT", help="Run on this device server, without a tracker and a lease.")
@click.option("--key-file", type=options.FILE, help="With --server: the file with its key (its --standing-key).")
@click.option("--serve", metavar="NAME", help="Call this deployed module, in place of a lease and a MODEL.")
@options.tracker
@click.option("--repeat", type=click.IntRange(1), default=10, show_default=True, help="How many runs to time.")
@click.option(
    "--priority", type=options.Number(), default=1.0, show_default=True, help="Of the request; higher goes first."
)
@click.option("--session-timeout", metavar="SECONDS", type=options.Number(0, min_open=True),
              help="The device ends the session after that.")  # fmt: skip
@click.option("--wait-timeout", type=options.Number(0), help="Seconds to wait for a device (else no limit).")
@click.option("-o", "--output", type=options.FilePath(dir_okay=False),
              help="Write the outputs here (.npz); of several devices to NAME-0.npz, NAME-1.npz, …")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each device.")
@click.argument("model", type=options.FileOrUrl(), required=False)
@click.argument("arrays", metavar="[INPUTS.npz]", type=options.FILE, required=False)
def run(
    key: str | None, labels: Sequence[str], count: int, device: str, threads: int | None, server: str | None,
    key_file: Path | None, serve: str | None, tracker: str | None, repeat: int, output: Path | None,
    as_json: bool, model: Path | str | None, arrays: Path | None, **terms: Any,
) -> None:  # fmt: skip
    """Lease a device, run MODEL on it, time it, print its outputs.

    MODEL is an .onnx, .tflite, .xml (OpenVINO's), .vmfb or .pte file, or a library (.so): a tree of modules, or a
    Relax program that TVM has compiled.

    INPUTS.npz holds the model's inputs by name; without it they are random, from a fixed seed.

    With --serve NAME there is no MODEL: rpcsys run --serve NAME [INPUTS.npz].

    With --server HOST:PORT it is that device, by its --key or --key-file: no tracker, no lease.

    MODEL may be a model on an inference server (Triton, MLServer, rpcsys gateway): http://HOST:PORT/v2/models/NAME
    or grpc://HOST:PORT/NAME.
    """
    if isinstance(model, str):
        _run_url(model, arrays, Run(None, repeat, as_json, output_files(output, 1, arrays)))
        return
    if device:
        device_names.parse(device)  # raises now
    wanted = parse_labels(labels)
    direct = _direct(server, key, key_file, terms)
    if serve is not None:
        arrays = _of_served(model, arrays)
    elif model is None:
        raise UsageError("give a MODEL to run, or --serve NAME to call a deployed module")
    elif direct is None and key is None and not wanted and not attaching.here():
        raise UsageError("give --key, the kind of device to lease (query_tracker lists them), or a --label")
    else:
        options.check_file(model, "model")
        external.files_of(model)  # raises now, before a device is leased
    if key is not None:
        options.check_key(key)
    given = load_inputs(arrays) if arrays is not None else None
    if model is not None and serve is None:
        check_inputs(model, given)
    job = Run(given, repeat, as_json, output_files(output, count, arrays), device, threads or 0)
    if direct is not None:
        assert model is not None, "checked above"
        with direct() as session:
            _run_on(session, model, job, 0)
        return
    with connect_tracker(options.tracker_address(tracker)) as connection:
        if serve is not None:
            with connection.serve(serve) as module:
                _run_served(module, job)
        else:
            assert model is not None, "checked above"
            with _leased(connection, key, labels=wanted, count=count, **terms) as sessions:
                for place, session in enumerate(sessions):
                    _run_on(session, model, job, place)


def _direct(
    server: str | None, key: str | None, key_file: Path | None, terms: Mapping[str, Any]
) -> Callable[[], Session] | None:
    """What opens the session of a run with ``--server``; None without. Raises `UsageError`."""
    if server is None:
        if key_file is not None:
            raise UsageError("--key-file is for one server: say which, with --server HOST:PORT")
        return None
    _leave_out(_NOT_DIRECT, "--server runs on one device, without a tracker")
    parse_address(server)
    if key is not None and key_file is not None:
        raise UsageError("--key and --key-file: leave out one; a server with a standing key needs its file")
    found = standing_key.match_key(str(key_file)) if key_file is not None else key or ""
    limit = terms["session_timeout"]
    return lambda: connect(server, key=found, session_timeout=limit)


def check_inputs(model: Path, given: Arrays | None) -> None:
    """Raise `UsageError` now, before a device is leased, for inputs that the model does not take."""
    if given is not None:
        declared.check_inputs(model, given)
        return
    needed = [each for each in declared.inputs_of(model) or () if each.needed and each.dtype]
    samples.check_random([each._asdict() for each in needed])


def _of_served(model: Path | None, arrays: Path | None) -> Path | None:
    """The inputs' file of a command with ``--serve``."""
    _leave_out((*_LEASED, "server", "device", "threads"), "--serve calls a module that clients share, without a lease")
    if arrays is not None or (model is not None and model.suffix in SUFFIXES):
        raise UsageError(f"--serve runs a deployed module: leave out {model}, or deploy it (rpcsys deploy)")
    return model


def _leave_out(names: Sequence[str], why: str) -> None:
    """Raise `UsageError` for options on the command line that make no sense with another."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = "--label" if name == "labels" else "--" + name.replace("_", "-")
            raise UsageError(f"{why}: leave out {flag}")


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Labels of a request from ``name=value`` and comparisons (``name>=1.22``, ``name<2``). Raises `UsageError`.

    Several comparisons of a label hold together.
    """
    labels: dict[str, str] = {}
    for text in texts:
        name, value = _parse_label(text)
        before = labels.get(name, value)
        if before != value and not (operator_of(before)[0] and operator_of(value)[0]):
            raise UsageError(f"--label {text!r}: {name} is {before} already; a label has one value")
        labels[name] = value if before == value else f"{before},{value}"
    return labels


def _parse_label(text: str) -> tuple[str, str]:
    """The name and the wanted value of ``name=value``, ``name>=4`` or ``name=>=4``."""
    name = re.split("[<>=!]", text, maxsplit=1)[0]
    value = text[len(name) :].removeprefix("=")
    compared, wanted = operator_of(value)
    if not (name.strip() and wanted and (compared or text[len(name)] == "=")):
        how = "labels look like arch=aarch64 or 'cores>=4', in quotes: a shell reads > and < otherwise"
        raise UsageError(f"--label {text!r}: {how}")
    return name.strip(), value


def output_files(output: Path | None, count: int, arrays: Path | None = None) -> list[Path]:
    """A file for the outputs of each of ``count`` devices; none without ``output``. Raises `UsageError`."""
    if output is None:
        return []
    files = [output] if count == 1 else [output.with_name(f"{output.stem}-{place}.npz") for place in range(count)]
    for file in (output, *files):
        options.check_output(file, ".npz", "outputs are", arrays)
    return files


@contextlib.contextmanager
def _leased(tracker: Tracker, key: str | None, *, count: int, **terms: Any) -> Iterator[tuple[Session, ...]]:
    with progress.steps() as place:
        found: Session | tuple[Session, ...] = tracker.request(key, count=count, on_queued=place.say, **terms)
    with contextlib.ExitStack() as stack:
        yield tuple(map(stack.enter_context, found if isinstance(found, tuple) else (found,)))


def _run_on(session: Session, path: Path, job: Run, place: int) -> None:
    name = printable(str(session.lease.get("server") or session.info["key"]))
    about = {"device": name, "address": "{}:{}".format(*session.address)}
    _say(job, f"device: {name} at {about['address']}")
    with progress.bar(f"loading {path.name}", "B") as advance:
        model = session.load_module(path, progress=advance, device=job.device, threads=job.threads)

    def timed(feed: Arrays) -> TimingResult:
        ordered = [feed[spec["name"]] for spec in model.inputs if spec["name"] in feed]
        on_device = [value if value.dtype.kind in "OUT" else session.array(value) for value in ordered]
        with progress.bar("timing", "run") as advance:
            return time_model(model, on_device, job.repeat, advance)

    _run_model(model, about, job, place, timed)


def _run_served(module: ServedModule, job: Run) -> None:
    about = {"module": module.name, "version": module.version}
    _say(job, f"module: {printable(module.name)} {printable(module.version)}")
    _run_model(module, about, job, 0, lambda feed: time_calls(module, feed, job.repeat))


def _run_url(url: str, arrays: Path | None, job: Run) -> None:
    """Call a model on an inference server, with the inputs and outputs that the server says."""
    _leave_out(
        (*_LEASED, "server", "key_file", "serve", "tracker", "device", "threads"), "a URL says where the model is"
    )
    first, *_ = urls.parse_urls(url)
    job = replace(job, feed=load_inputs(arrays) if arrays is not None else None)
    described = inference.InferenceModel(first, (), (), _CONNECT_S)
    described.close()
    _say(job, f"model:  {printable(url)}")
    with remote(url, inputs=described.inputs, outputs=described.outputs) as model:
        _run_model(model, {"model": url}, job, 0, lambda feed: time_calls(model, feed, job.repeat))


def _run_model(
    model: RemoteModule | Module, about: dict[str, str], job: Run, place: int, timed: Callable[[Arrays], TimingResult]
) -> None:
    feed = samples.random_inputs(model.inputs, SEED) if job.feed is None else job.feed
    _say(job, f"inputs: {f'random (seed {SEED})' if job.feed is None else 'as given'}")
    _print_arrays(job, feed)
    outputs = model.run(feed)
    _say(job, "outputs:")
    _print_arrays(job, outputs)
    written = job.outputs[place] if job.outputs and _saved(job.outputs[place], outputs) else None
    if written is not None:
        _say(job, f"wrote:  {written}")
    timing = timed(feed)
    _say(job, f"time:   {timing}")
    for warning in timing.warnings:
        terminal.say(f"rpcsys: warning: {warning}", err=True)
    if job.as_json:
        seed = SEED if job.feed is None else None
        shown = {"inputs": _described(feed), "outputs": _described(outputs)}
        file = {} if written is None else {"file": str(written)}
        terminal.print_json({**about, "seed": seed, **shown, **file, "time_s": _figures(timing)})


def _say(job: Run, text: str) -> None:
    if not job.as_json:
        terminal.say(text)


def _print_arrays(job: Run, arrays: Mapping[str, Any]) -> None:
    if not job.as_json:
        terminal.print_pairs([(name, terminal.value_text(value)) for name, value in arrays.items()])


def _described(arrays: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: _facts(value) for name, value in arrays.items()}


def _facts(value: Any) -> dict[str, Any]:
    """An array's dtype, shape, least, mean and largest number (null for infinity, not-a-number, and no number).

    Of anything else, a text for people, and its value.
    """
    if not hasattr(value, "dtype"):
        return {"text": terminal.value_text(value), "value": _plain(value)}
    facts: dict[str, Any] = {"dtype": str(value.dtype), "shape": list(value.shape)}
    if getattr(value.dtype, "kind", "") in "fiu" and value.size:
        numbers = {"min": float(value.min()), "mean": float(value.mean()), "max": float(value.max())}
        facts.update({name: number if math.isfinite(number) else None for name, number in numbers.items()})
    return facts


def _plain(value: Any) -> Any:
    """A value of JSON: arrays become lists, keys texts, and infinity and not-a-number null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _figures(timing: TimingResult) -> dict[str, Any]:
    names = ("mean", "median", "min", "max", "std")
    figures = {name: getattr(timing, name) for name in names}
    more = {"interval": timing.interval, "joules": timing.joules, "board": timing.board}
    return {**figures, **more, "results": list(timing.results), "warnings": list(timing.warnings)}


def _saved(path: Path, outputs: Mapping[str, Any]) -> bool:
    """Write the arrays among the outputs, if any, and name the others; whether there is a file now."""
    arrays = arrays_of(outputs)
    left = [name for name in outputs if name not in arrays]
    if left:
        what = f"{path} is without {', '.join(map(repr, left))}" if arrays else f"{path} is not written"
        why = "no arrays of numbers or text, such as the maps of a ZipMap; see them with --json, or export zipmap=False"
        terminal.say(f"rpcsys: warning: {what}: {why}", err=True)
    if arrays:
        save_arrays(path, arrays)
    return bool(arrays)


def arrays_of(outputs: Mapping[str, Any]) -> Arrays:
    """The outputs that an ``.npz`` file can hold, as arrays of numbers or text."""
    import numpy as np

    arrays = {}
    for name, value in outputs.items():
        try:
            array = np.asarray(value)
        except ValueError:  # a list of arrays of unequal shapes
            continue
        if not array.dtype.hasobject:
            arrays[name] = array
        elif all(isinstance(item, str) for item in array.flat):
            arrays[name] = array.astype(str)
    return arrays


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays to an ``.npz`` file, by any names. Raises `UsageError` where it cannot be written."""
    import numpy as np

    try:
        with zipfile.ZipFile(path, "w") as archive:  # numpy.savez takes no array of the name "file"
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"-o {path} cannot be written: {error.strerror or error}") from None


def load_inputs(path: Path) -> Arrays:
    """Every array of an ``.npz`` file by name. Raises `UsageError` for any other file."""
    import numpy as np

    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UsageError(f"{path} holds one array, and inputs go by name: {_HOW_ARRAYS}")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}; check the path") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is no .npz file of plain arrays: {_why_no_arrays(path, error)}") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy gives the bytes of members that are no arrays
            raise UsageError(f"{path} holds {printable(name)!r}, which is no array: {_HOW_ARRAYS}")
    return arrays


def _why_no_arrays(path: Path, error: Exception) -> str:
    if "Object arrays" in str(error):
        return "it holds Python objects; save strings with .astype(str)"
    if not path.stat().st_size:
        return f"it is empty; {_HOW_ARRAYS}"
    if isinstance(error, (EOFError, zipfile.BadZipFile)):
        return f"{error}; copy it again"
    return _HOW_ARRAYS
