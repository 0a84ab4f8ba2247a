"""Devices opened for trials: stages are loaded on them, and timed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpcsys.client import Session, Tracker, connect, connect_tracker
from rpcsys.errors import ModelError, one_line
from rpcsys.graph._build.build import build
from rpcsys.graph._build.device_toolchain import export_for
from rpcsys.graph._build.encoding import check_encoding, encoded_call
from rpcsys.graph._ir import models
from rpcsys.graph._ir.stage import Stage
from rpcsys.graph._plan.cost_model import DeviceLink
from rpcsys.graph._plan.devices import PlanDevice, TrackerLike
from rpcsys.graph._plan.measure import measured_link


@dataclass(frozen=True)
class Trial:
    """A stage that is loaded on a device.

    Attributes
    ----------
    call : runs it there, with tensors of this machine, and brings its results here
    work_s : its own seconds there for these arguments, if that is less than a call takes; else None
    """

    call: Callable[..., Any]
    work_s: Callable[[Sequence[Any]], float] | None = None


class LocalBench:
    """CPUs of this machine."""

    link: DeviceLink | None = None

    def __init__(self, device: PlanDevice) -> None:
        self._device = device

    def load(self, stage: Stage) -> Trial:
        module = build(stage, self._device.target)
        module.link()
        return Trial(module)


class RemoteBench:
    """A device that a session is open with."""

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


def load_on(session: Session, stage: Stage) -> Any:
    """A stage on a device, through a file that is gone there when it is loaded."""
    with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder:
        path = Path(folder, f"{stage.name}.so")
        if fits_a_file(stage):
            path = path.with_suffix(".onnx")
            stage.save(path)
        else:
            export_for(session, build(stage), path)
        return session.load_module(path)


def fits_a_file(stage: Stage) -> bool:
    """Whether one ONNX file is all of it. A large stage is a library, and an exact one, for the level it runs at."""
    return not stage.exact and stage.weight_bytes <= models.EMBEDDED_BYTES


def open_sessions(
    devices: Sequence[PlanDevice], tracker: TrackerLike, wait_s: float, stack: ExitStack
) -> Iterator[Session | None]:
    """A session with each device, None for CPUs of this machine; ``stack`` gives back those that it opened.

    Raises what connecting and leasing does; see `rpcsys.client.Tracker.request`.
    """
    lender: Tracker | None = None
    for device in devices:
        if device.leased:
            lender = lender or _lender(tracker, stack)
            yield stack.enter_context(lender.request(device.key, wait_timeout=wait_s))
        elif device.address:
            yield stack.enter_context(connect(device.address, key=device.key, timeout=wait_s))
        else:
            yield device.session


def _lender(tracker: TrackerLike, stack: ExitStack) -> Tracker:
    return tracker if isinstance(tracker, Tracker) else stack.enter_context(connect_tracker(tracker))


def open_bench(device: PlanDevice, session: Session | None, calls: int, encode: str) -> LocalBench | RemoteBench:
    """A device ready to be tried; a remote one with so many ``calls`` under way at once, their arrays encoded.

    Raises `SessionError` where it is lost meanwhile, `NotSupported` where it cannot decode them.
    """
    return LocalBench(device) if session is None else RemoteBench(device, session, calls, encode)
