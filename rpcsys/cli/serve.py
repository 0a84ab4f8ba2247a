"""``rpcsys serve``: models on this machine for every client of the Open Inference Protocol, in one command."""

from __future__ import annotations

import contextlib
import json
import math
import select
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rpcsys import local_daemons, progress
from rpcsys.cli import options
from rpcsys.client.deploying import Deployment
from rpcsys.errors import RpcsysError, UsageError
from rpcsys.local_daemons import HOST, Daemon, LocalDaemons
from rpcsys.module import external
from rpcsys.module.loading import SUFFIXES
from rpcsys.query import terminal
from rpcsys.serve import Signals

_MOST_NUMBERS = 64  # of a request that is printed as JSON
_POLL_S = 0.1
_WATCH_S = 1.0  # how often it checks that both daemons run
_WIDTHS = {"BOOL": 1, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8} | {
    f"{sign}INT{bits}": bits // 8 for sign in ("", "U") for bits in (8, 16, 32, 64)
}


@click.command(short_help="Serve models from this machine to tritonclient, curl and others.")
@click.option("--host", default=HOST, show_default=True, help="The address to serve at; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
              help="For HTTP; if it is taken, the next free one. 0 takes any.")  # fmt: skip
@click.option("--grpc-port", type=click.IntRange(0, 65535), help="For gRPC (default: free, from 8001 on); 0: none.")
@click.option("--http-port", type=click.IntRange(0, 65535), help="For figures (/metrics).")
@click.option("--batch", "batches", metavar="NAME=MAX[:US]", multiple=True,
              help="Compute requests of a model together, at most MAX rows; repeatable.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 1024), help="Calls of each model at once (default: one per core).")
@click.option("--allow-pickle", is_flag=True, help="Load Python functions of libraries: they may do anything here.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=options.FILE)
def serve(
    host: str, port: int, grpc_port: int | None, http_port: int | None, batches: Sequence[str], workers: int | None,
    allow_pickle: bool, files: Sequence[Path],
) -> None:  # fmt: skip
    """Serve each FILE, a model (.onnx, .tflite, …) or a library (.so), under its name, until Ctrl-C.

    It starts a server with a folder of its own, puts the files there, and starts a gateway before it: KServe's
    protocol (V2), over HTTP and gRPC, as Triton speaks it. At the end nothing is left.
    """
    names = _names(files)
    daemons = LocalDaemons("the")
    with contextlib.closing(daemons):
        deadline = time.monotonic() + local_daemons.START_TIMEOUT_S
        server = _server(daemons, deadline, workers, allow_pickle)
        with Deployment((HOST, server.port)) as deployment:
            for name, file in names.items():
                with progress.bar(f"loading {file.name}", "B") as advance:
                    deployment.put(file.absolute(), name, progress=advance)
        flags = ["--server", f"{HOST}:{server.port}", "--host", host]
        flags += [] if grpc_port is None else ["--grpc-port", str(grpc_port)]
        flags += [] if http_port is None else ["--http-port", str(http_port)]
        flags += [word for batch in batches for word in ("--batch", batch)]
        flags += [word for name in names for word in ("--module", name)]
        gateway = daemons.spawn("gateway", "rpcsys.gateway", flags, port)
        daemons.await_ready([gateway], time.monotonic() + local_daemons.START_TIMEOUT_S)
        _await_models(daemons, gateway)
        _describe(gateway, names)
        _until_a_signal(daemons)


def _names(files: Sequence[Path]) -> dict[str, Path]:
    """The files by the names of their models. Raises `UsageError`."""
    names: dict[str, Path] = {}
    for file in files:
        options.check_file(file, "model")
        if file.suffix not in SUFFIXES:
            raise UsageError(f"{file}: this serves models and libraries ({', '.join(SUFFIXES)}); give one of these")
        external.files_of(file)  # raises now, before anything is started
        if names.setdefault(file.stem, file) is not file:
            both = f"{names[file.stem]} and {file} would both be {file.stem}"
            raise UsageError(f"{both}: leave out one, or give it another name")
    return names


def _server(daemons: LocalDaemons, deadline: float, workers: int | None, allow_pickle: bool) -> Daemon:
    flags = ["--key", "serve", "--deploy", str(daemons.open() / "deployed")]
    flags += [] if workers is None else ["--deploy-workers", str(workers)]
    flags += ["--allow-pickle"] if allow_pickle else []
    server = daemons.spawn("server", "rpcsys.server", flags)
    daemons.await_ready([server], deadline)
    return server


def _await_models(daemons: LocalDaemons, gateway: Daemon) -> None:
    """Wait until the gateway has found all models."""
    deadline = time.monotonic() + local_daemons.START_TIMEOUT_S
    while time.monotonic() < deadline:
        daemons.check_running()
        with contextlib.suppress(urllib.error.HTTPError):  # 503: not yet
            _asked(gateway, "/v2/health/ready")
            return
        time.sleep(_POLL_S)
    raise RpcsysError(f"the gateway serves no model within {local_daemons.START_TIMEOUT_S:g} s: {local_daemons.BUSY}")


def _describe(gateway: Daemon, names: Mapping[str, Path]) -> None:
    """Print where each model is, and a line that calls it."""
    where = f"{gateway.ready['host']}:{gateway.port}"
    terminal.print_pairs([("HTTP", where), *_grpc(gateway)])
    for name in names:
        url = f"http://{HOST}:{gateway.port}/v2/models/{name}"
        terminal.print_heading(name)
        click.echo(_curl(url, _asked(gateway, f"/v2/models/{name}")["inputs"]))


def _grpc(gateway: Daemon) -> Iterator[tuple[str, str]]:
    if gateway.ready.get("grpc_port"):
        yield "gRPC", f"{gateway.ready['host']}:{gateway.ready['grpc_port']}"


def _curl(url: str, inputs: Sequence[Mapping[str, Any]]) -> str:
    """A line for a shell that calls the model with zeros; one that describes it, where such a line would be long."""
    shapes = [[1 if extent < 0 else extent for extent in each["shape"]] for each in inputs]
    if sum(map(math.prod, shapes)) <= _MOST_NUMBERS:
        given = [
            {"name": each["name"], "shape": shape, "datatype": each["datatype"], "data": _zeros(each, shape)}
            for each, shape in zip(inputs, shapes, strict=True)
        ]
        if "BF16" not in [each["datatype"] for each in inputs]:  # JSON has no such numbers
            return f"curl -d '{json.dumps({'inputs': given})}' {url}/infer"
    elif len(inputs) == 1 and inputs[0]["datatype"] in _WIDTHS and sum(extent < 0 for extent in inputs[0]["shape"]) < 2:
        size = math.prod(shapes[0]) * _WIDTHS[inputs[0]["datatype"]]
        how = "-H 'Inference-Header-Content-Length: 0' --data-binary @- --output answer"
        return f"head -c {size} /dev/zero | curl {how} {url}/infer"
    return f"curl {url}"


def _zeros(described: Mapping[str, Any], shape: Sequence[int]) -> list[Any]:
    zero = {"BYTES": "", "BOOL": False}.get(described["datatype"], 0)
    return [zero] * math.prod(shape)


def _asked(gateway: Daemon, path: str) -> Any:
    """The gateway's answer to a GET. Raises urllib.error.HTTPError."""
    with urllib.request.urlopen(f"http://{HOST}:{gateway.port}{path}", timeout=10) as answer:
        return json.load(answer)


def _until_a_signal(daemons: LocalDaemons) -> None:
    """Wait for Ctrl-C or SIGTERM. Raises `RpcsysError` if a daemon ends before."""
    signals = Signals()
    try:
        while not select.select([signals], [], [], _WATCH_S)[0]:
            daemons.check_running()
    finally:
        signals.close()
