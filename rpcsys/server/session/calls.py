"""How a call is answered: arguments made from its frame, its function run, the result packed.

`Calls` is the algorithm; a session (`operations`) and a model host (`rpcsys.server.models.calls`) say which functions
there are.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Sequence

from rpcsys.errors import ProtocolError, RemoteArgumentError
from rpcsys.module.module import Module
from rpcsys.server.session.objects import Objects, from_function, keep_arrays, to_function
from rpcsys.wire import frames, values
from rpcsys.wire.encoding import encoded
from rpcsys.wire.frames import Buffer, Frame, FrameTemplate, array_maker
from rpcsys.wire.head_cache import HeadCache, signature
from rpcsys.wire.memory import Pool

_NOTHING = FrameTemplate(frames.RESULT, b'{"r":null}')
_PLAIN_CALL = {"f", "a"}


class ThreadMemory(threading.local):
    """Memory for outputs: a pool is for one thread."""

    def __init__(self) -> None:
        self.pool = Pool()


class Calls:
    """The functions that a client can call."""

    #: Whether a module's function stays what it is: no client can free the module.
    modules_last = False

    def __init__(self, objects: Objects, memory: ThreadMemory) -> None:
        self.objects = objects
        self._memory = memory
        self._heads = HeadCache()  # of results
        #: Targets that are no functions: what they take or give comes in CHUNKs.
        self.streamed: dict[str, Callable[[Frame], list[Buffer]]] = {}

    def resolve(self, target: Any) -> Callable[..., Any]:
        """The callable for what a CALL names. Raises `RemoteFunctionError` when there is none."""
        raise NotImplementedError

    def module(self, id: Any) -> Module:
        """The module of that number. Raises `RemoteFunctionError`."""
        raise NotImplementedError

    def answer(self, frame: Frame) -> list[Buffer]:
        """Run a call; the pieces of its RESULT, none when an upload has only begun.

        Raises whatever its function raises, and `RpcsysError` for a call that cannot be made.
        """
        parsed = frame.parsed
        if parsed.memo is None:
            target = parsed.head.get("f")
            by_name = type(target) is str
            if by_name and target in self.streamed:
                return self.streamed[target](frame)
            parsed.memo = plain_call(parsed.head, self.resolve, by_name or self.modules_last)
        return self.result(frame.call_id, parsed.memo(frame)) if parsed.memo else self.run(frame)

    def run(self, frame: Frame) -> list[Buffer]:
        """`answer` a call that is not plain: one that keeps, writes, or names its arguments, or has lists of them."""
        head, objects, pool = frame.parsed.head, self.objects, self._memory.pool
        target = head.get("f")
        written: list[Any] = []
        if "k" in head:
            if type(target) is not list or len(target) != 2 or target[1] != "main":
                raise ProtocolError("only a module's main is run by names")
            named = to_function(frame.get("k"), objects, pool, written)
            result: Any = _run_by_name(self.module(target[0]), named, frame.get("outputs"))
        else:
            args = listed(head.get("a", ()))
            made = [to_function(values.build(arg, frame.buffers), objects, pool, written) for arg in args]
            result = encoded(self.resolve(target)(*made), frame.get("encode"))
        if head.get("keep") is True:
            result = keep_arrays(result, objects)
        elif not written:
            return self.result(frame.call_id, result)
        fields = {"r": from_function(result, objects)}
        if written:
            fields["w"] = written
        return frames.encode(frames.RESULT, frame.call_id, fields)

    def result(self, call_id: int, result: Any) -> list[Buffer]:
        """The RESULT of a function that wrote into nothing; its head is remembered if it is one array or scalar."""
        if result is None:
            return _NOTHING.pieces(call_id)
        key, buffers = signature(None, (result,))
        template = self._heads.get(key)
        if template is None:
            template, buffers = frames.template(frames.RESULT, {"r": from_function(result, self.objects)})
            self._heads.put(key, template)
        return template.pieces(call_id, buffers)


def listed(value: Any) -> Sequence[Any]:
    """The arguments of a call, which are a list. Raises `ProtocolError`."""
    if not isinstance(value, (list, tuple)):
        raise ProtocolError("the arguments of a call are a list")
    return value


def _run_by_name(module: Module, named: Any, outputs: Any) -> dict[str, Any]:
    """Run a module's main by names that came from a client. Raises `RemoteArgumentError` for what are none."""
    wanted = outputs if outputs is not None else []
    if type(named) is not dict or type(wanted) is not list or not all(type(n) is str for n in [*named, *wanted]):
        raise RemoteArgumentError("main is run with its inputs by name, and a list of the names of outputs")
    return module.run(named, outputs)


def plain_call(
    head: dict[str, Any], resolve: Callable[[Any], Callable[..., Any]], lasting: bool
) -> Callable[[Frame], Any] | bool:
    """What runs a CALL, given its frame, where its head alone decides the arguments; else False.

    Plain calls of functions with scalars and arrays. What keeps, writes, or names its arguments is not among them.
    ``resolve`` finds a function by what the head names, once if it is ``lasting``; raises as that does.
    """
    target = head.get("f")
    if head.keys() != _PLAIN_CALL or type(head["a"]) is not list:
        return False
    args = head["a"]
    scalars = True
    makers: list[Callable[[Frame], Any]] = []
    for item in args:
        scalar = type(item) is not dict and type(item) is not list
        make = _constant(item) if scalar else array_maker(item)
        if make is None:
            return False
        scalars = scalars and scalar
        makers.append(make)
    if not lasting:  # an object of the session, which may be freed and its number mean nothing
        return lambda frame: resolve(target)(*[make(frame) for make in makers])
    function = resolve(target)
    if scalars:
        constants = tuple(args)
        return lambda frame: function(*constants)
    if len(makers) == 1:
        only = makers[0]
        return lambda frame: function(only(frame))
    return lambda frame: function(*[make(frame) for make in makers])


def _constant(value: Any) -> Callable[[Frame], Any]:
    return lambda frame: value
