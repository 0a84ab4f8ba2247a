"""A stage on leased devices: sent to a device when that is leased, and to another one when it is lost.

Frames whose device is lost run again. They use another device of the stage until a new device is leased. They run one
at a time, and each on `TRIES` devices at most. So a frame that crashes devices fails, and the frames that were under
way beside it do not. Frames that wait for a device at the same time share one wait.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rpcsys import client
from rpcsys.errors import ConnectError, RpcsysError, SessionClosed, SessionLost, SessionTimeout, UsageError, one_line
from rpcsys.graph._build.session_device import check_encoding, encoded_call, toolchain_of
from rpcsys.graph._build.targets import Leased, OnnxRuntime, Reference, Tvm, target_of
from rpcsys.graph._ir.stage import TensorSpec
from rpcsys.module import Module, export_library

TRIES = 3  # devices that one frame may lose; after that the loss is the frame's error
_LOST = (SessionLost, SessionTimeout, SessionClosed)  # the device or its server died, or the lease ended
_RETRY_S = 0.25  # seconds between two requests while there is no tracker or no device

_log = logging.getLogger("rpcsys.pipeline")


class StageLibrary:
    """A stage as a library, to send to leased devices; its folder is deleted with the last reference to it.

    Raises `UsageError` as `export_library` does, and for another target than onnxruntime, reference or TVM.
    """

    def __init__(self, built: Module, leased: Leased) -> None:
        target = target_of(leased.target)
        if not isinstance(target, (OnnxRuntime, Reference, Tvm)):
            raise UsageError("the target of a leased device is onnxruntime, reference or tvm")
        seconds = 0 < leased.wait_s < float("inf") and 0 <= leased.deadline_s < float("inf")
        if not leased.key or leased.calls < 1 or not seconds:
            raise UsageError("a leased device has a key, a wait_s above 0, a deadline_s from 0, and calls from 1")
        self.leased = leased
        self.members: list[LeasedModule] = []  # the modules that use it, each on a device of its own
        self.rerun_lock = threading.Lock()  # held while a frame is run again
        self.given_up: tuple[float, RpcsysError] | None = None  # when the last wait for a device failed, and why
        self._folder = tempfile.TemporaryDirectory(prefix="rpcsys-")
        self._built = built
        self._compiled = isinstance(target, Tvm)
        self._lock = threading.Lock()
        self._paths: dict[str | None, Path] = {}
        self.path(target.toolchain or None if isinstance(target, Tvm) else None)

    def path(self, toolchain: str | None = None) -> Path:
        """The library for that toolchain, or for this machine; written at the first call."""
        with self._lock:
            if toolchain not in self._paths:
                path = Path(self._folder.name, str(len(self._paths)), "stage.so")
                path.parent.mkdir()
                export_library(self._built, path, toolchain)
                self._paths[toolchain] = path
            return self._paths[toolchain]

    def path_for(self, session: client.Session) -> Path:
        """The library for a session's device: code is compiled for its target, everything else runs on any machine."""
        return next(iter(self._paths.values())) if self._compiled else self.path(toolchain_of(session))


class _LeasedDevice(NamedTuple):
    session: client.Session
    run: Callable[..., Any]


class LeasedModule(Module):
    """A stage on a leased device: ``main`` runs there. Several threads may call it.

    `lease` or the first call leases the device; `close` releases it. The module cannot be exported.
    """

    METHODS: ClassVar[Mapping[str, str]] = {"main": "_main"}

    def __init__(self, library: StageLibrary, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        super().__init__("leased", inputs=inputs, outputs=outputs)
        self.library, self.leased = library, library.leased
        self._options = {"deadline_s": self.leased.deadline_s} if self.leased.deadline_s else {}
        self._device: _LeasedDevice | None = None
        self._lock = threading.Lock()  # guards the device; held briefly
        self._lease_lock = threading.Lock()  # held while waiting for a device
        self._replacing: threading.Thread | None = None
        self._ended = threading.Event()
        library.members.append(self)

    @property
    def session(self) -> client.Session | None:
        """The session with the device that is leased now, if any."""
        device = self._device
        return device.session if device is not None else None

    def replica(self) -> LeasedModule:
        """Another module of the same stage, on a device of its own."""
        return LeasedModule(self.library, self.inputs, self.outputs)

    def lease(self) -> None:
        """Lease the device and load the stage on it, unless done. Raises as `Tracker.request` and `load_module` do."""
        self._own_device(time.monotonic())

    def release(self) -> None:
        super().release()
        self._ended.set()
        with self._lock:
            device, self._device = self._device, None
            self.library.given_up = None  # its traceback refers to this module
            if self in self.library.members:
                self.library.members.remove(self)
        if device is not None:
            device.session.close()

    def _main(self, *args: Any) -> Any:
        try:
            return self._any_device(time.monotonic()).run(*args)
        except _LOST:
            since = time.monotonic()
        with self.library.rerun_lock:
            for _ in range(TRIES - 2):
                device = self._any_device(since)
                with contextlib.suppress(*_LOST):
                    return device.run(*args)
            return self._any_device(time.monotonic()).run(*args)

    def _live_device(self) -> _LeasedDevice | None:
        device = self._device
        return device if device is not None and device.session.closed is None else None

    def _any_device(self, since: float) -> _LeasedDevice:
        """Return its own device or, while that is lost, another member's. ``since``: when the wait began."""
        own = self._live_device()
        if own is not None:
            return own
        for member in list(self.library.members):
            device = member._live_device()
            if device is not None:
                self._lease_in_background()
                return device
        return self._own_device(since)

    def _lease_in_background(self) -> None:
        """Start to lease a device in place of the lost one, without waiting for it."""
        with self._lock:
            if self._ended.is_set() or (self._replacing is not None and self._replacing.is_alive()):
                return
            self._replacing = threading.Thread(target=self._lease_again, name="lease", daemon=True)
            self._replacing.start()

    def _lease_again(self) -> None:
        try:
            self._own_device(time.monotonic())
        except RpcsysError as error:
            _log.warning("no other device of %s yet: %s", self.leased.key, one_line(error))

    def _own_device(self, since: float) -> _LeasedDevice:
        """Return its own device; lease one if it has none or has lost it.

        Raises the error of another frame's wait that has ended after ``since``: this frame has waited, too.
        """
        with self._lease_lock:
            self.check_open()
            live = self._live_device()
            if live is not None:
                return live
            given_up = self.library.given_up
            if given_up is not None and given_up[0] >= since:
                raise given_up[1]
            lost = self._device
            if lost is not None:
                lost.session.close()
            try:
                device = self._wait_for_device(again=lost is not None)
            except RpcsysError as error:
                self.library.given_up = (time.monotonic(), error)
                raise
            with self._lock:
                if not self._ended.is_set():
                    self._device = device
                    return device
            device.session.close()
            self.check_open()
        raise AssertionError("a module that has ended is not open")

    def _wait_for_device(self, again: bool) -> _LeasedDevice:
        """Wait for a device. ``again``: it had one before, so wait for a missing tracker or key, too."""
        deadline = time.monotonic() + self.leased.wait_s
        if again:
            waits = "its frames wait for another one, up to"
            _log.warning("the device of %s is lost; %s %g s", self.leased.key, waits, self.leased.wait_s)
        while True:
            try:
                return self._request(max(0.0, deadline - time.monotonic()), again)
            except (ConnectError, *_LOST):
                if not again or time.monotonic() + _RETRY_S > deadline:
                    raise
            self._ended.wait(_RETRY_S)
            self.check_open()

    def _request(self, wait_s: float, again: bool) -> _LeasedDevice:
        given = self.leased.tracker
        tracker = given if isinstance(given, client.Tracker) else client.connect_tracker(given or None)
        try:
            session = tracker.request(self.leased.key, wait_timeout=wait_s, wait_for_key=again)
        finally:
            if tracker is not given:
                tracker.close()
        try:
            check_encoding(session, self.leased.encode, f"key:{self.leased.key}")
            module = session.load_module(self.library.path_for(session))
            return _LeasedDevice(session, encoded_call(module, self.leased.encode, **self._options))
        except BaseException:
            session.close()
            raise
