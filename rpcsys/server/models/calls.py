"""The calls of a deployed module: answered as in a session, but no object is kept between calls."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from rpcsys.errors import RemoteArgumentError, RemoteFunctionError
from rpcsys.module import placement
from rpcsys.module.module import Module
from rpcsys.server.session.calls import BoundCall, Calls, Objects, ThreadMemory
from rpcsys.wire.frames import Buffer, Frame
from rpcsys.wire.values import Ref

MODULE = 0  # the module's object number on a connection
_KEEPS_NOTHING = "a deployed module keeps nothing between calls, and its functions give none; return arrays and numbers"
_NO_OBJECTS = "a shared connection has no objects beside the deployed module; lease a device for that"
_ONE_MODULE = (
    "a shared connection calls the functions of its deployed module, and nothing else; lease a device for that"
)


class _NoObjects(Objects):
    """The objects of a connection that keeps none."""

    def keep(self, value: Any, about: dict[str, Any]) -> Ref:
        raise RemoteArgumentError(_KEEPS_NOTHING)

    def get(self, id: Any) -> Any:
        raise RemoteFunctionError(_NO_OBJECTS)


class ModuleCalls(Calls):
    """The functions of a deployed module, which clients call. For any number of threads.

    ``window_bytes``: the most bytes of a call's arguments, including those that are made here.
    """

    modules_last = True

    def __init__(self, module: Module, window_bytes: int = 1 << 62) -> None:
        super().__init__(_NoObjects(), ThreadMemory())
        self._module = module
        self._window_bytes = window_bytes
        self._functions: dict[str, Callable[..., Any]] = {}
        self._devices = module.devices

    def resolve(self, target: Any) -> Callable[..., Any]:
        """The module's function that a CALL names."""
        name = _name_of(target)
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = self._in_turn(self._module.function(name))
        return found

    def bound(self, frame: Frame) -> BoundCall:
        bound = super().bound(frame)
        return bound._replace(function=self._in_turn(bound.function)) if "k" in frame.parsed.head else bound

    def _in_turn(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` in its turn on its device, with a result on the host; unchanged if it runs on the CPU."""
        devices = self._devices
        if not devices:
            return function
        return lambda *args: placement.one_device(devices, lambda: placement.on_host(function(*args)))

    def module(self, id: Any) -> Module:
        """The deployed module, whatever the number."""
        return self._module

    def run(self, frame: Frame) -> list[Buffer]:
        """Check a call before memory is taken for its arguments, and run it."""
        head, made = frame.parsed.head, frame.parsed.made
        if made > self._window_bytes:
            text = f"the arguments take {made} bytes here (at most {self._window_bytes}, as if they were sent)"
            raise RemoteArgumentError(text)
        if head.get("keep") is True:
            self.objects.keep(None, {})
        name = _name_of(head.get("f"))
        if "k" in head:
            by_name = head["k"] if type(head["k"]) is dict else {}
            _check_made([by_name.get(value["name"]) for value in self._module.inputs], self._module.inputs)
        elif name == "main" and type(head.get("a")) is list:
            _check_made(head["a"], self._module.inputs)
        return super().run(frame)


def _check_made(args: list[Any], inputs: Sequence[dict[str, Any]]) -> None:
    """Check type and shape of the arguments that are made here. Raises `RemoteArgumentError`."""
    for arg, value in zip(args, inputs):
        if type(arg) is not dict or arg.get("@") not in ("out", "encoded"):
            continue
        wanted, shape = value["shape"], arg["shape"]
        sizes_fit = (type(want) is not int or want < 0 or want == have for want, have in zip(wanted, shape))
        fits = len(wanted) == len(shape) and all(sizes_fit)
        if arg["dtype"] != value["dtype"] or (wanted and not fits):
            text = f"input {value['name']!r} wants {value['dtype']} {wanted}, and got {arg['dtype']} {shape}"
            raise RemoteArgumentError(text)


def _name_of(target: Any) -> str:
    """The module's function that a CALL names. Raises `RemoteFunctionError` for any other target."""
    if type(target) is list and len(target) == 2 and target[0] == MODULE and type(target[1]) is str:
        return str(target[1])
    raise RemoteFunctionError(_ONE_MODULE)
