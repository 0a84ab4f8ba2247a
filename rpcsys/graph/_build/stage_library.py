"""A stage, or a segment of several, as a library to send to leased boards."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rpcsys import client
from rpcsys.errors import UsageError
from rpcsys.graph._build.session_device import toolchain_of
from rpcsys.graph._build.targets import Leased, OnnxRuntime, Reference, Tvm, target_of
from rpcsys.module import Module, export_library
from rpcsys.wire.device_names import parse


class PlacedStage(NamedTuple):
    """A stage, and the device of its board that runs it; "" for what its target says."""

    name: str
    device: str


class StageLibrary:
    """Stages as a library; its folder is deleted with the last reference to it.

    ``built`` : the module of the stages, with the tensors that go to the board and come back
    ``leased`` : the target of each stage, by its name

    Raises `UsageError` as `export_library` does, and for stages for different toolchains.
    """

    def __init__(self, built: Module, leased: Mapping[str, Leased]) -> None:
        targets = [target_of(each.target) for each in leased.values()]
        compiled = [target.toolchain for target in targets if isinstance(target, Tvm)]
        if len(set(compiled)) > 1:
            raise UsageError(f"stages of one board have one toolchain, not {' and '.join(sorted(set(compiled)))}")
        self.stages = tuple(PlacedStage(name, each.device) for name, each in leased.items())
        #: How many calls are under way: enough for the network, and to keep each device busy.
        self.calls = max(*(each.calls for each in leased.values()), 2 * len(self.devices))
        self._folder = tempfile.TemporaryDirectory(prefix="rpcsys-")
        self.built = built
        self._compiled = bool(compiled)
        self._lock = threading.Lock()
        self._paths: dict[str | None, Path] = {}
        self.path(compiled[0] or None if compiled else None)

    @property
    def name(self) -> str:
        """The names of its stages, joined: ``stage1+stage2``."""
        return "+".join(stage.name for stage in self.stages)

    @property
    def devices(self) -> frozenset[str]:
        """The devices that its stages name."""
        return frozenset(stage.device for stage in self.stages if stage.device)

    def path(self, toolchain: str | None = None) -> Path:
        """The library for that toolchain, or for this machine; written at the first call."""
        with self._lock:
            if toolchain not in self._paths:
                path = Path(self._folder.name, str(len(self._paths)), "stage.so")
                path.parent.mkdir()
                export_library(self.built, path, toolchain)
                self._paths[toolchain] = path
            return self._paths[toolchain]

    def path_for(self, session: client.Session) -> Path:
        """The library for a session's device: code is compiled for its target, everything else runs on any machine."""
        return next(iter(self._paths.values())) if self._compiled else self.path(toolchain_of(session))


def checked(leased: Leased) -> Leased:
    """Return ``leased`` if a stage can be sent to it, with the device's full name. Raises `UsageError`."""
    if not isinstance(target_of(leased.target), (OnnxRuntime, Reference, Tvm)):
        raise UsageError("the target of a leased device is onnxruntime, reference or tvm")
    seconds = 0 < leased.wait_s < float("inf") and 0 <= leased.deadline_s < float("inf")
    if not leased.key or leased.calls < 1 or not seconds:
        raise UsageError("a leased device has a key, a wait_s above 0, a deadline_s from 0, and calls from 1")
    if leased.board and not leased.device:
        raise UsageError(f"board={leased.board!r} is for stages with a device; give each one, such as device='cpu:0'")
    return replace(leased, device=str(parse(leased.device))) if leased.device else leased
