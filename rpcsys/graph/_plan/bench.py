"""Opens devices for trials: measures links, loads stages, and times calls."""

from __future__ import annotations

import functools
import math
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from rpcsys.client import RemoteModule, Session
from rpcsys.errors import ModelError, one_line
from rpcsys.graph._build.build import build, segment_library
from rpcsys.graph._build.session_device import check_encoding, encoded_call, toolchain_of
from rpcsys.graph._build.targets import Leased
from rpcsys.graph._ir import models
from rpcsys.graph._ir.stage import Stage, Stages
from rpcsys.graph._pipeline.resolve import on_device
from rpcsys.graph._plan.cost_model import DeviceLink
from rpcsys.graph._plan.devices import PlanDevice
from rpcsys.module import Module, export_library
from rpcsys.wire.device_names import CPU, parse

#: A link is measured with growing sizes, until a transfer takes this long or has this many bytes.
_LINK_S = 0.1
_LINK_BYTES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
_PINGS = 15
_COPY_BYTES = 1 << 22
_COPIES = 5

_FEWEST = 3  # the fewest calls of a stage
_QUARTILE = 0.25  # the quartile of their times that counts: other load on the machine only adds time


class Trial(NamedTuple):
    """A stage that is loaded on a device, ready to be called."""

    call: Callable[..., Any]  # runs it there, with arrays of this machine, and returns arrays of this machine
    work_s: Callable[[Sequence[Any]], float] | None = None  # its own seconds there, if less than the call's


@dataclass
class LocalBench:
    """CPUs of this machine, ready for trials."""

    device: PlanDevice
    link: DeviceLink | None = None

    def load(self, stage: Stage) -> Trial:
        module = build(stage, self.device.target)
        module.link()
        return Trial(on_device(module, module))


class RemoteBench:
    """A device with an open session, ready for trials."""

    def __init__(self, device: PlanDevice, session: Session, calls: int, encode: str) -> None:
        check_encoding(session, encode, device.name)
        self._device = device
        self._encode = encode
        self._session = session
        self.link: DeviceLink | None = measured_link(session, calls)

    def load(self, stage: Stage) -> Trial:
        try:
            module = load_on(self._session, stage)
        except ModelError as error:
            raise ModelError(f"{self._device.name} cannot take {stage.name}: {one_line(error)}") from None

        def work_s(args: Sequence[Any]) -> float:
            return float(module.time_evaluator("main", number=1, repeat=5)(*args).median)

        return Trial(encoded_call(module, self._encode), work_s)


class BoardBench:
    """A board with an open session, ready for trials of stages on several of its devices."""

    def __init__(self, name: str, session: Session, calls: int, encode: str) -> None:
        check_encoding(session, encode, name)
        self.name = name
        self.session = session
        self._encode = encode
        self._modules: dict[str, tuple[Stage, PlanDevice, Module]] = {}  # the newest ones: TVM takes seconds for each
        self.link = measured_link(session, calls)

    def chip(self, device: PlanDevice) -> ChipBench:
        """One of its devices, ready for trials."""
        return ChipBench(self, device, measured_copies(self.session, device.chip))

    def load(self, stages: Stages, on: Mapping[str, PlanDevice]) -> Trial:
        """Load ``stages``, each on its device, as one call."""
        built = {each.name: self._built(each, on[each.name]) for each in stages}
        module = self._sent(stages, {name: device.on_board() for name, device in on.items()}, built)

        def work_s(args: Sequence[Any]) -> float:
            (device,) = on.values()
            there = [self._put(arg, device.chip) for arg in args]
            return float(module.time_evaluator("main", number=1, repeat=5)(*there).median)

        return Trial(encoded_call(module, self._encode), work_s)

    def _sent(self, stages: Stages, leased: Mapping[str, Leased], built: Mapping[str, Module]) -> RemoteModule:
        library = segment_library(stages, leased, built)
        try:
            return self.session.load_module(library.path_for(self.session))
        except ModelError as error:
            on = ", ".join(sorted(library.devices))
            raise ModelError(f"{self.name} cannot take {library.name} on {on}: {one_line(error)}") from None

    def _built(self, stage: Stage, device: PlanDevice) -> Module:
        known = self._modules.get(stage.name)
        if known is None or known[0] is not stage or known[1] is not device:
            known = self._modules[stage.name] = stage, device, build(stage, device.target)
        return known[2]

    def _put(self, value: Any, chip: str) -> Any:
        """An array in the memory of a device, so that a stage is measured without its way there."""
        return self.session.array(value, device=chip) if isinstance(value, np.ndarray) else value


class ChipBench(NamedTuple):
    """A device inside a board, ready for trials; ``link`` is the way from the board's memory and back."""

    board: BoardBench
    device: PlanDevice
    link: DeviceLink | None

    def load(self, stage: Stage) -> Trial:
        """Load a stage as a call of its own."""
        return self.board.load(_whole(stage), {stage.name: self.device})


def _whole(stage: Stage) -> Stages:
    """A stage as the only one of a model."""
    return Stages([stage], [each for each in stage.inputs if each.required], stage.outputs, exact=stage.exact)


def open_bench(device: PlanDevice, session: Session | None, calls: int, encode: str) -> LocalBench | RemoteBench:
    """Prepare a device for trials; a remote one with ``calls`` calls under way at once, their arrays encoded.

    Raises `SessionError` if the device is lost, `NotSupported` if it cannot decode the arrays.
    """
    return LocalBench(device) if session is None else RemoteBench(device, session, calls, encode)


def load_on(session: Session, stage: Stage) -> RemoteModule:
    """Load a stage on a device, through a file that is then deleted."""
    with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder:
        path = write_part(stage, Path(folder, stage.name), toolchain_of(session))
        return session.load_module(path)


def write_part(stage: Stage, path: Path, toolchain: str | None = None, on: PlanDevice | None = None) -> Path:
    """Write a stage for a server to ``path`` plus the ending of an ONNX file or, if necessary, of a library.

    A large stage becomes a library. So does an exact one, because a library stores the optimisation level, and one for
    a device inside a board, which a library names.
    """
    if on is not None and on.chip:
        path = path.with_name(f"{path.name}.so")
        export_library(segment_library(_whole(stage), {stage.name: on.on_board()}).built, path, toolchain)
    elif not stage.exact and stage.weight_bytes <= models.EMBEDDED_BYTES:
        path = path.with_name(f"{path.name}.onnx")
        stage.save(path)
    else:
        path = path.with_name(f"{path.name}.so")
        export_library(build(stage), path, toolchain)
    return path


class TimedCall(NamedTuple):
    """A function to call repeatedly, by a number of threads at once."""

    function: Callable[[], Any]
    threads: int = 1


def paces(calls: Sequence[TimedCall], seconds: float, *, together: bool) -> list[float]:
    """Seconds between two results of each call: the lower quartile, which other load hardly affects.

    ``together`` runs all calls at the same time, as the stages of a pipeline do. So the figures include the effects of
    what they share: memory, caches, the heat of a processor.
    """
    if not together:
        return [pace for call in calls for pace in paces([call], seconds, together=True)]
    for call in calls:
        call.function()
    runs = [_Run(call, seconds) for call in calls]
    loops = [run.loop for run in runs for _ in range(run.call.threads)]
    threads = [threading.Thread(target=loop, args=(runs,), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        if run.error is not None:
            raise run.error
    return [run.pace() for run in runs]


class _Run:
    """One stage, called repeatedly until each of the others has had its time."""

    def __init__(self, call: TimedCall, seconds: float) -> None:
        self.call = call
        self._seconds = seconds
        self._done = [perf_counter()]  # the start, then the time of each result
        self.error: BaseException | None = None
        self.enough = False

    def loop(self, others: Sequence[_Run]) -> None:
        fewest = _FEWEST * self.call.threads
        try:
            while not all(run.enough for run in others):
                self.call.function()
                now = perf_counter()
                self._done.append(now)
                if len(self._done) > fewest and now - self._done[0] >= self._seconds:
                    self.enough = True
        except BaseException as error:  # noqa: BLE001 - raised after the threads are joined
            self.error = error
            self.enough = True

    def pace(self) -> float:
        """Measured over as many results as it has threads, since those may come all together."""
        each = np.diff(np.sort(self._done)[:: self.call.threads])
        return float(np.quantile(each, _QUARTILE)) / self.call.threads


def measured_link(session: Session, calls: int) -> DeviceLink:
    """Measure the link to a session's device and back, for so many calls under way.

    Raises `SessionError` if the device is lost.
    """
    echo = session.get_function("testing.echo")
    latency = timed(lambda: echo(0), _PINGS)[0]
    up = down = math.inf
    for size in _LINK_BYTES:
        array = np.random.default_rng(size).integers(0, 256, size, np.uint8)  # random, so that no layer compresses it
        there = session.array(array)
        to_s = max(timed(functools.partial(session.array, array), 3)[0] - latency, 1e-9)
        back_s = max(timed(there.numpy, 3)[0] - latency, 1e-9)
        up, down = size / to_s, size / back_s
        if max(to_s, back_s) > _LINK_S:
            break
    return DeviceLink(latency, up, down, calls)


def measured_copies(session: Session, chip: str) -> DeviceLink:
    """Measure copies between a board's memory and that of one of its devices: what they take beside the link.

    Raises `SessionError` if the board is lost.
    """
    if parse(chip) == CPU:
        return DeviceLink(0.0, math.inf, math.inf)
    array = np.random.default_rng(1).integers(0, 256, _COPY_BYTES, np.uint8)
    rates = []
    for device in ("", chip):
        there = session.array(array, device=device)
        to_s = timed(functools.partial(session.array, array, device=device), _COPIES)[0]
        rates.append((to_s, timed(there.numpy, _COPIES)[0]))
    (host_to_s, host_back_s), (to_s, back_s) = rates
    up, down = (size_per_s(more) for more in (to_s - host_to_s, back_s - host_back_s))
    return DeviceLink(0.0, up, down)


def size_per_s(seconds: float) -> float:
    """Bytes a second of a copy of `_COPY_BYTES`, or infinite if it took no time that can be measured."""
    return _COPY_BYTES / seconds if seconds > 0 else math.inf


def timed(call: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """The least seconds of ``repeat`` calls, and the result of the last one."""
    best = math.inf
    for _ in range(repeat):
        began = perf_counter()
        result = call()
        best = min(best, perf_counter() - began)
    return best, result
