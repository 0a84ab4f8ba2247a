"""The functions of a session: files, modules, arrays, timing, and functions that a client sends."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

from rpcsys.errors import RemoteArgumentError, RemoteFunctionError
from rpcsys.module import placement
from rpcsys.module.loading import load_file
from rpcsys.module.module import Module
from rpcsys.module.placement import DeviceArray
from rpcsys.server.session import registry
from rpcsys.server.session.calls import Calls, Objects, ThreadMemory, keep_arrays
from rpcsys.server.session.directory import file_errors
from rpcsys.server.session.exec_calls import ExecCalls
from rpcsys.server.session.files import Files
from rpcsys.server.session.transfers import Transfers
from rpcsys.wire import device_names
from rpcsys.wire.checks import shown
from rpcsys.wire.frames import Frame
from rpcsys.wire.tensor import as_tensor

#: This Python's minor version, which a pickled function needs: bytecode differs between minor versions.
MODELS_ONLY = "the lab's rules let you load models in ONNX's format only (code = false)"
_ON_CPU = (placement.HOST,)
PYTHON = "{}.{}".format(*sys.version_info[:2])


class Operations(Calls):
    """All that a client can call in one session, by target."""

    def __init__(
        self, objects: Objects, memory: ThreadMemory, files: Files, programs: ExecCalls, *, allow_pickle: bool,
        models_only: bool = False, forget_heads: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(objects, memory)
        self.streamed = {"session.upload": files.begin, "session.download": files.download}
        existing = files.directory.existing
        self._allow_pickle = allow_pickle and not models_only
        self._models_only = models_only
        self._forget_heads = forget_heads
        self._named: dict[str, Callable[..., Any]] = {}
        #: Whether a model runs on another device than the CPU: then each device has a thread (`DeviceCalls`).
        self.uses_devices = False
        objects.on_devices = self._use_devices
        self.settle: Callable[[], None] = lambda: None  # has the client know what was printed before
        self._add("session.has_function", self._has_function, str)
        self._add(
            "session.load_module", lambda name, *how: self._load(existing(name), name, *how), str, str, int, optional=2
        )
        self._add("session.listdir", files.directory.listdir, str, optional=1)
        self._add("session.remove", files.directory.remove, str)
        self._add("session.offer", files.offer, str, int, str)
        moved = Transfers(files.directory)
        self._add("session.tree", moved.tree, str)
        self._add("session.make_folders", moved.make_folders, list)
        self._add("session.write", moved.write, list, (bytes, memoryview))
        self._add("session.place", moved.place, list)
        self._add("session.memory", objects.memory)
        self._add("session.put", self._put, object, str, optional=1)
        self._add("session.devices", _devices)
        self._add("session.get", lambda value: value, object)
        self._add("session.run", self._run_pickled, str, (bytes, memoryview), more=True)
        self._add("session.time", self._time, (str, int, list), (list, tuple), dict)
        self._add("session.board_state", self._board_state)
        self._add("session.time_turns", self._time_turns, list, list, list, (int, float))
        self._add("session.profile", self._profile, list, list, dict)
        self._add("session.functions", registry.names)
        self._add("session.exec", programs.start, int, list, dict)
        self._add("session.forward", programs.forward, int, int, int)
        self._directory = files.directory
        self._candidates: Any = None
        self._add("session.measure", self._measure, (bytes, memoryview), str, list, dict, str, optional=1)

    def _add(self, name: str, function: Callable[..., Any], *kinds: Any, **more: Any) -> None:
        self._named[name] = registry.taking(name, function, *kinds, **more)

    def resolve(self, target: Any) -> Callable[..., Any]:
        """The callable that a CALL names: by a function's name, an object's number, or ``[number, name]``."""
        if type(target) is str:
            return self._named.get(target) or self._registered(target)
        if type(target) is list and len(target) == 2 and type(target[1]) is str:
            return self.module(target[0]).function(target[1])
        value = self.objects.get(target)
        if not callable(value):
            raise RemoteFunctionError(f"object {shown(target)} of this session is no function")
        return value  # type: ignore[no-any-return]

    def module(self, id: Any) -> Module:
        """The loaded module with the number ``id``."""
        value = self.objects.get(id)
        if not hasattr(value, "function"):
            raise RemoteFunctionError(f"object {shown(id)} of this session is no module")
        return value  # type: ignore[no-any-return]

    def _registered(self, name: str) -> Callable[..., Any]:
        function = self._named[name] = registry.lookup(name)
        return function

    def _has_function(self, name: str) -> None:
        self.resolve(name)

    def devices_of(self, frame: Frame) -> tuple[str, ...]:
        """The devices that a call uses, the first one first; none for one that is quick, or changes the session.

        Raises `RemoteFunctionError` for an object that does not exist.
        """
        target, args = frame.parsed.head.get("f"), frame.parsed.head.get("a")
        if target in ("session.time", "session.profile") and type(args) is list and args:
            target = args[0]
        if target == "session.time_turns" and type(args) is list and args:
            return self._devices_of_turns(args[0])
        if type(target) is list and target:
            return self._of_module(target[0])
        if target == "session.put" and type(args) is list and len(args) == 2 and type(args[1]) is str:
            return (str(device_names.parse(args[1])),)
        if target == "session.get" and type(args) is list and args:
            kept = self.objects.get(args[0].get("id")) if type(args[0]) is dict else None
            return (kept.device,) if isinstance(kept, DeviceArray) else ()
        own = type(target) is str and target.startswith("session.") and target != "session.run"
        return () if own else _ON_CPU

    def _put(self, value: Any, device: str = "") -> Any:
        if as_tensor(value) is None:
            raise RemoteArgumentError(f"session.array takes an array, not a {type(value).__name__}")
        name = device_names.parse(device or device_names.CPU.kind)
        if name != device_names.CPU and name.dlpack is not None:  # the others read the host's memory
            from rpcsys.ffi import device_arrays  # few sessions pay for it

            value = device_arrays.copied(value, str(name))
        return keep_arrays(value, self.objects)

    def _time(self, target: Any, args: list[Any], options: dict[str, Any]) -> dict[str, Any]:
        from rpcsys.server.session.timing import measure  # here and below: an idle server is small

        return measure(functools.partial(self.resolve(target), *args), options)

    def _time_turns(self, targets: list[Any], *more: Any) -> dict[str, Any]:
        from rpcsys.server.session.turns import bound, time_turns

        return time_turns(bound(targets, self.resolve), *more)

    def _profile(self, target: list[Any], args: list[Any], options: dict[str, Any]) -> bytes:
        from rpcsys.server.session.profiling import profile

        plain = self.resolve(target)  # of a module: checks the target, too
        with file_errors("the profile"):
            profiler = self.module(target[0]).profiler(target[1], self._directory.root)
        return profile(profiler, plain, args, options)

    def _board_state(self) -> dict[str, Any]:
        from rpcsys.server.session.board_state import board_state, process_memory

        self.settle()
        return {**board_state(), "process": process_memory()}

    def _devices_of_turns(self, targets: Any) -> tuple[str, ...]:
        """The devices of all functions that are timed in turns; the CPU alone where they are none of modules."""
        named = [each[0] for each in targets if type(each) is list and each] if type(targets) is list else []
        found = [device for each in named if type(each) is list and each for device in self._of_module(each[0])]
        return tuple(dict.fromkeys(found)) or _ON_CPU

    def _of_module(self, id: Any) -> tuple[str, ...]:
        return self.module(id).devices or _ON_CPU

    def _measure(self, *candidate: Any) -> dict[str, Any]:
        if self._models_only:
            raise RemoteFunctionError(MODELS_ONLY)
        if self._candidates is None:
            from rpcsys.server.session.candidates import Candidates  # few sessions pay for it

            self._candidates = Candidates(self._directory)
        return self._candidates.measure(*candidate)  # type: ignore[no-any-return]

    def _use_devices(self) -> None:
        if not self.uses_devices:
            self.uses_devices = True
            self._forget_heads()  # of calls that the thread that reads would run itself

    def _load(self, path: str, name: str, device: str = "", threads: int = 0) -> Module:
        if self._models_only and not path.endswith(".onnx"):
            raise RemoteFunctionError(f"{name}: {MODELS_ONLY}")
        return load_file(path, name, allow_pickle=self._allow_pickle, device=device, threads=threads)

    def _run_pickled(self, python: str, pickled: bytes, *args: Any) -> Any:
        """Call the function in ``pickled``, which cloudpickle made in the minor version ``python``."""
        if self._models_only:
            raise RemoteFunctionError(MODELS_ONLY)
        if not self._allow_pickle:
            text = "this server runs no functions of its clients; start it with --allow-pickle if they may"
            raise RemoteFunctionError(text)
        if python != PYTHON:
            text = f"a function of Python {python} cannot run in Python {PYTHON}, which this device has"
            raise RemoteFunctionError(text)
        return _unpickled(pickled)(*args)


def _devices() -> dict[str, Any]:
    """What each device has done, and the newest turns on them, whose times are seconds of one clock."""
    figures = {device: vars(each) for device, each in placement.figures().items()}
    return {"devices": figures, "runs": [list(run) for run in placement.runs()]}


def _unpickled(pickled: bytes) -> Callable[..., Any]:
    try:
        import cloudpickle
    except ImportError:
        raise RemoteFunctionError("this device has no cloudpickle; there: python3 -m pip install cloudpickle") from None
    try:
        function = cloudpickle.loads(pickled)
    except ModuleNotFoundError as error:
        raise RemoteFunctionError(
            f"the function needs the module {error.name!r}, which this device has not; upload and import it in the "
            "function, or send it along: cloudpickle.register_pickle_by_value(module)"
        ) from None
    except Exception as error:  # noqa: BLE001 - unpickling may raise anything
        text = f"what was sent for session.run cannot be loaded ({type(error).__name__}: {error})"
        raise RemoteFunctionError(text) from None
    if not callable(function):
        raise RemoteFunctionError(f"session.run takes a function, not a {type(function).__name__}")
    return function  # type: ignore[no-any-return]
