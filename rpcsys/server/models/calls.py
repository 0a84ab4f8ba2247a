"""Running the calls of a deployed module: arguments made from a frame, the function called, its answer packed.

As in a session, but nothing stays between calls: no arrays, no functions, no other module.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Sequence

from rpcsys.errors import ProtocolError, RemoteArgumentError, RemoteFunctionError
from rpcsys.module.module import Module
from rpcsys.server.session.faults import described
from rpcsys.server.session.objects import Objects, from_function, plain_call, returned, run_by_name, to_function
from rpcsys.wire import frames, values
from rpcsys.wire.encoding import encoded
from rpcsys.wire.frames import Buffer, Frame
from rpcsys.wire.head_cache import HeadCache
from rpcsys.wire.memory import Pool
from rpcsys.wire.values import Ref

MODULE = 0
"""The number under which a connection knows its module."""


class _Nothing(Objects):
    """The objects of a connection that keeps none."""

    def keep(self, value: Any, about: Dict[str, Any]) -> Ref:
        raise RemoteArgumentError(
            "a deployed module keeps nothing between calls, and its functions give none; return arrays and numbers"
        )

    def get(self, id: Any) -> Any:
        raise RemoteFunctionError(
            "a shared connection has no objects beside the deployed module; lease a device for that"
        )


class Calls:
    """The functions of a module, as clients call them. For any number of threads.

    ``window_bytes``: what the arguments of a call may take, those that are made here as if they had been sent.
    """

    def __init__(self, module: Module, window_bytes: int = 1 << 62) -> None:
        self._module = module
        self._window_bytes = window_bytes
        self._functions: Dict[str, Callable[..., Any]] = {}
        self._nothing = _Nothing()
        self._heads = HeadCache()
        self._threads = threading.local()

    def answer(self, frame: Frame) -> List[Buffer]:
        """Run a call; the pieces of its RESULT, or of its ERROR. Raises what ends a process, and nothing else."""
        try:
            parsed = frame.parsed
            if parsed.memo is None:
                parsed.memo = self._plain(parsed.head)
            if parsed.memo:
                return returned(frame.call_id, parsed.memo(frame), self._nothing, self._heads)
            return self._answer(frame)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            return frames.encode(frames.ERROR, frame.call_id, described(error))

    def _plain(self, head: Dict[str, Any]) -> Any:
        name = name_of(head)
        return plain_call({**head, "f": name}, self._function)

    def _function(self, name: str) -> Callable[..., Any]:
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = self._module.function(name)
        return found

    def _answer(self, frame: Frame) -> List[Buffer]:
        head = frame.parsed.head
        if frame.parsed.made > self._window_bytes:
            raise RemoteArgumentError(
                f"the arguments take {frame.parsed.made} bytes here (at most {self._window_bytes}, as if they were sent)"
            )
        if head.get("keep") is True:
            self._nothing.keep(None, {})
        name = name_of(head)
        written: List[Any] = []
        if "k" in head:
            if name != "main":
                raise ProtocolError("only a module's main is run by names")
            by_name = head["k"] if type(head["k"]) is dict else {}
            _check_made([by_name.get(value["name"]) for value in self._module.inputs], self._module.inputs)
            named = to_function(frame.get("k"), self._nothing, self._pool(), written)
            result: Any = run_by_name(self._module, named, frame.get("outputs"))
        else:
            args = head.get("a", [])
            if type(args) is not list:
                raise ProtocolError("the arguments of a call are a list")
            if name == "main":
                _check_made(args, self._module.inputs)
            made = [to_function(values.build(arg, frame.buffers), self._nothing, self._pool(), written) for arg in args]
            result = encoded(self._function(name)(*made), frame.get("encode"))
        if not written:
            return returned(frame.call_id, result, self._nothing, self._heads)
        fields = {"r": from_function(result, self._nothing), "w": written}
        return frames.encode(frames.RESULT, frame.call_id, fields)

    def _pool(self) -> Pool:
        """Memory for outputs: a pool is for one thread."""
        pool: Any = getattr(self._threads, "pool", None)
        if pool is None:
            pool = self._threads.pool = Pool()
        return pool  # type: ignore[no-any-return]


def _check_made(args: List[Any], inputs: Sequence[Dict[str, Any]]) -> None:
    """Before memory is taken for them: that arguments made here are such as the model takes. Raises `RemoteArgumentError`."""
    for arg, value in zip(args, inputs):
        if type(arg) is not dict or arg.get("@") not in ("out", "encoded"):
            continue
        wanted, shape = value["shape"], arg["shape"]
        fits = len(wanted) == len(shape) and all(
            type(want) is not int or want < 0 or want == have for want, have in zip(wanted, shape)
        )
        if arg["dtype"] != value["dtype"] or (wanted and not fits):
            raise RemoteArgumentError(
                f"input {value['name']!r} wants {value['dtype']} {wanted}, and got {arg['dtype']} {shape}"
            )


def name_of(head: Dict[str, Any]) -> str:
    """The function that a CALL names. Raises `RemoteFunctionError` for whatever is none of the module's."""
    target = head.get("f")
    if type(target) is list and len(target) == 2 and target[0] == MODULE and type(target[1]) is str:
        return str(target[1])
    raise RemoteFunctionError(
        "a shared connection calls the functions of its deployed module, and nothing else; lease a device for that"
    )
