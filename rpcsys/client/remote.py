"""The user's handles of objects on the device: functions, modules, arrays."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, Union

from rpcsys import part
from rpcsys.client import answers
from rpcsys.client.arrays import outputs_of, result_maker, to_user, write_back
from rpcsys.client.calls import CallFuture, Channel
from rpcsys.client.mapping import Encoded, MappedCalls
from rpcsys.client.timing import TimingResult, told
from rpcsys.errors import ProtocolError, RemoteFunctionError, SessionLost, UsageError, printable
from rpcsys.stream import FunctionBase
from rpcsys.wire import frames
from rpcsys.wire.by_name import inputs_by_name, output_names
from rpcsys.wire.checks import shown
from rpcsys.wire.frames import Frame, HeadCache, Key, signature
from rpcsys.wire.tensor import Tensor
from rpcsys.wire.values import InOut, Ref

if TYPE_CHECKING:
    from rpcsys.client.profiles import OperatorProfile

#: The function of a CALL: a name that every session has, an object's id, or an id and a name in that object.
Target = Union[str, int, Tuple[int, str]]
Convert = Callable[[Frame], Any]


class Caller:
    """Makes the calls of all handles of one device: a channel, and the cache of the heads that were sent on it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._heads = HeadCache()
        self._exchange = channel.exchange(self._heads)

    def _builtin(self, name: str, *args: Any, deadline_s: Optional[float] = None) -> Any:
        """Call a built-in function of the session."""
        template, buffers = frames.template(frames.CALL, {"f": name, "a": list(args)})
        return self._result(self._channel.call(template, buffers, deadline_s))

    def _submit_builtin(self, name: str, *args: Any, deadline_s: Optional[float] = None) -> CallFuture:
        """Call a built-in function of the session without waiting."""
        return self._submit({"f": name, "a": list(args)}, self._result, deadline_s)

    def _submit(self, fields: Dict[str, Any], convert: Convert, deadline_s: Optional[float] = None) -> CallFuture:
        template, buffers = frames.template(frames.CALL, fields)
        future = CallFuture(self._channel, convert)
        self._channel.start(future, template, buffers, deadline_s)
        return future

    def _result(self, frame: Frame) -> Any:
        """The result in a RESULT frame, converted for the user."""
        parsed = frame.parsed
        if parsed.memo is None:
            parsed.memo = result_maker(parsed.head.get("r"))
        if parsed.memo:
            return parsed.memo(frame)
        return to_user(frame.get("r"), self._of_ref)

    def _of_ref(self, ref: Ref) -> Any:
        """The handle of an object that the device keeps. Raises `SessionLost` for an unknown kind (newer server)."""
        kind = ref.about.get("is")
        if kind == "array":
            return RemoteArray(self, ref)
        if kind == "module":
            return RemoteModule(self, ref)
        if kind == "function":
            about = answers.from_device(answers.FUNCTION, ref.about, "a function")
            return RemoteFunction(self, ref.id, about.get("name", ""), _Owned(self, ref.id))
        raise SessionLost(f"the device returned an object of unknown kind {shown(kind)}; update this client")


class RemoteFunction(FunctionBase):
    """A function on the device.

    Arguments are arrays, numbers, strings, bytes, lists, tuples, dicts, and arrays that are on the device already. One
    call is one round trip. With ``keep=True`` the outputs stay on the device, and each is returned as a `RemoteArray`.
    The device ends a call after ``deadline_s`` seconds, and with it the session, unless onnxruntime runs it. Ctrl-C
    does the same, and drops a call that waits; a KeyboardInterrupt reports a lost session.
    """

    def __init__(self, session: Caller, target: Target, name: str, owner: Any = None) -> None:
        self._session = session
        self._target = target
        self._about: Tuple[Key, ...] = ((target, False), (target, True))  # in the keys of heads, by ``keep``
        self._wanted: Dict[str, str] = {}  # the encodings of results, by their indexes
        self._owner = owner  # keeps the module or the function alive on the device
        self.name = name
        self._bind(session._exchange, self._about[False])

    def __repr__(self) -> str:
        return f"<remote function {self.name}>"

    def _result_of(self, frame: Frame) -> Any:
        return self._session._result(frame)

    def _call(self, *args: Any, keep: bool = False, deadline_s: Optional[float] = None) -> Any:
        session = self._session
        key, buffers = signature(self._about[keep], args)
        template, convert = session._heads.get(key), None
        if template is None:
            template, buffers, convert = self._encode(args, keep, key)
        frame = session._channel.call(template, buffers, deadline_s)
        return (convert or frame.parsed.memo or session._result)(frame)

    def submit(self, *args: Any, keep: bool = False, deadline_s: Optional[float] = None) -> CallFuture:
        """Call without waiting; a `concurrent.futures.Future`. Calls run in the order they are sent."""
        session = self._session
        template, buffers, convert = self._template(args, keep)
        future = CallFuture(session._channel, convert or session._result)
        session._channel.start(future, template, buffers, deadline_s)
        return future

    def map(self, iterable: Iterable[Any], *more: Iterable[Any], ahead: int = 64) -> Iterator[Any]:
        """Call with each item, as the builtin ``map`` does: an iterator of the results, in order.

        Of these calls, at most ``ahead`` are under way, sent together where they are small. So this is the fastest way
        to make many calls. An error ends the iteration at its place, one that ``iterable`` raises, too; then, or when
        the iterator is dropped, the device drops the calls that wait. Arrays must not change until their results are
        here.

        Raises `UsageError` for an ``ahead`` that is not a whole number above 0.
        """
        if not isinstance(ahead, int) or ahead < 1:
            raise UsageError(f"map(…, ahead={ahead!r}): give the number of calls that may be under way, 1 or more")
        session, about = self._session, self._about[False]
        exchange = session._exchange

        def encode_rows(rows: List[Tuple[Any, ...]]) -> Optional[Tuple[bytes, int]]:
            return exchange.encode(about, rows) if exchange is not None else None

        calls = MappedCalls(session._channel, self._template, encode_rows, session._result, ahead)
        return calls.results(zip(iterable, *more))

    def time_evaluator(
        self,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        cooldown_s: float = 0,
        cache_flush_bytes: int = 0,
    ) -> TimeEvaluator:
        """Measure this function on the device: call the returned evaluator with the function's arguments.

        Each of ``repeat`` results is the mean of ``number`` calls, or of more if these take less than
        ``min_repeat_ms``; ``cooldown_s`` is the pause between repeats. With ``number=1``, and ``cache_flush_bytes``
        above the size of the CPU's caches, every call begins with cold caches. One call before is not counted.
        """
        options = {"number": number, "repeat": repeat, "min_repeat_ms": min_repeat_ms, "cooldown_s": cooldown_s}
        options["cache_flush_bytes"] = cache_flush_bytes
        return TimeEvaluator(self._session, self._target, options, self)

    def encoding(self, results: Mapping[str, str]) -> RemoteFunction:
        """The same function with encoded results: ``{"0": "float16"}`` maps a result's index to its encoding.

        Results arrive decoded. Arguments may be encoded, too: `rpcsys.wire.encoding`.
        """
        same = RemoteFunction(self._session, self._target, self.name, self._owner)
        same._wanted = dict(results)
        same._about = tuple((*about, *sorted(results.items())) for about in self._about)
        same._bind(self._session._exchange, same._about[False])
        return same

    def _template(self, args: Sequence[Any], keep: bool = False) -> Encoded:
        """The template of a call, its buffers, and the converter of its result if it writes into arguments."""
        key, buffers = signature(self._about[keep], args)
        template = self._session._heads.get(key)
        return self._encode(args, keep, key) if template is None else (template, buffers, None)

    def _encode(self, args: Sequence[Any], keep: bool, key: Optional[Key]) -> Encoded:
        """`_template` for a call whose head is not cached."""
        fields: Dict[str, Any] = {"f": _target_head(self._target), "a": list(args)}
        if keep:
            fields["keep"] = True
        if self._wanted:
            fields["encode"] = self._wanted
        template, buffers = frames.template(frames.CALL, fields)
        self._session._heads.put(key, template)
        written = outputs_of(args)
        if written:
            return template, buffers, functools.partial(_with_written, self._session, written)
        return template, buffers, None


class TimeEvaluator:
    """Times one function on the device with the arguments it is called with."""

    def __init__(self, session: Caller, target: Target, options: Dict[str, Any], owner: Any) -> None:
        self._session = session
        self._target = target
        self._options = options
        self._owner = owner

    def __call__(self, *args: Any) -> TimingResult:
        """Measure the function. Warns with `RuntimeWarning` if the board was busy, or changed meanwhile."""
        return told(self._session._builtin("session.time", *self._request(args)))

    def submit(self, *args: Any) -> CallFuture:
        """Measure without waiting; `told` makes the result from the future's."""
        return self._session._submit_builtin("session.time", *self._request(args))

    def _request(self, args: Sequence[Any]) -> Tuple[Any, ...]:
        return _target_head(self._target), list(args), self._options


class RemoteModule:
    """A model that is loaded on the device.

    Attributes
    ----------
    kind : what loaded it (``"rpcsys.onnx"``)
    functions : names of its functions
    inputs, outputs : of ``main``: dicts with name, dtype and shape (a name or None where an extent is free)
    """

    def __init__(self, session: Caller, ref: Ref, *, owned: bool = True) -> None:
        self._session = session
        self._id = ref.id
        self._mine = _Owned(session, ref.id) if owned else None
        about = answers.from_device(answers.MODULE, ref.about, "a module")
        self.kind = str(about.get("kind", ""))
        self.functions: Tuple[str, ...] = tuple(about.get("functions", ()))
        self.inputs: List[Dict[str, Any]] = about.get("inputs") or []
        self.outputs: List[Dict[str, Any]] = about.get("outputs") or []
        self._main = RemoteFunction(session, (ref.id, "main"), "main", self._mine)

    def __repr__(self) -> str:
        return printable("<remote module {} ({})>".format(self.kind, ", ".join(self.functions)))

    def _repr_html_(self) -> str:
        return str(part("rpcsys.client.shown").module_html(self))

    def __getitem__(self, name: str) -> RemoteFunction:
        """The function ``name``. Raises `RemoteFunctionError` where the module has none of that name."""
        if name == "main":
            return self._main
        if name not in self.functions:
            raise RemoteFunctionError(
                "the module has no function {!r}; it has {}".format(name, ", ".join(self.functions) or "none")
            )
        return RemoteFunction(self._session, (self._id, name), name, self._mine)

    def __call__(self, *args: Any, keep: bool = False, deadline_s: Optional[float] = None) -> Any:
        """Run ``main``: one output is the array, several are a tuple."""
        return self._main(*args, keep=keep, deadline_s=deadline_s)

    def submit(self, *args: Any, keep: bool = False, deadline_s: Optional[float] = None) -> CallFuture:
        """Run ``main`` without waiting, as `RemoteFunction.submit`."""
        return self._main.submit(*args, keep=keep, deadline_s=deadline_s)

    def map(self, iterable: Iterable[Any], *more: Iterable[Any], ahead: int = 64) -> Iterator[Any]:
        """Run ``main`` with each item, as `RemoteFunction.map`."""
        return self._main.map(iterable, *more, ahead=ahead)

    def run(
        self, inputs: Dict[str, Any], outputs: Optional[Sequence[str]] = None, *, keep: bool = False
    ) -> Dict[str, Any]:
        """Run ``main`` by names: inputs as a dict, the wanted outputs (all if None) as a dict. One round trip.

        Raises `RemoteArgumentError` for unknown names, and for inputs without names before anything is sent.
        """
        template, buffers = frames.template(frames.CALL, self._by_name(inputs, outputs, keep))
        return self._named(self._session._channel.call(template, buffers))

    def submit_run(
        self, inputs: Dict[str, Any], outputs: Optional[Sequence[str]] = None, *, keep: bool = False
    ) -> CallFuture:
        """`run` without waiting, as `RemoteFunction.submit`."""
        return self._session._submit(self._by_name(inputs, outputs, keep), self._named)

    def _by_name(self, inputs: Dict[str, Any], outputs: Optional[Sequence[str]], keep: bool) -> Dict[str, Any]:
        fields: Dict[str, Any] = {"f": [self._id, "main"], "k": inputs_by_name(inputs, self.inputs)}
        wanted = output_names(outputs)
        if wanted is not None:
            fields["outputs"] = wanted
        if keep:
            fields["keep"] = True
        return fields

    def _named(self, frame: Frame) -> Dict[str, Any]:
        return answers.from_device(answers.RUN, self._session._result(frame), "main")  # type: ignore[no-any-return]

    def time_evaluator(
        self,
        name: str = "main",
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        cooldown_s: float = 0,
        cache_flush_bytes: int = 0,
    ) -> TimeEvaluator:
        """Measure a function of this module on the device, as `RemoteFunction.time_evaluator`."""
        return self[name].time_evaluator(number, repeat, min_repeat_ms, cooldown_s, cache_flush_bytes)

    def profile(
        self, *args: Any, name: str = "main", runs: int = 10, warm_up: int = 2, trace: Optional[str] = None
    ) -> OperatorProfile:
        """Call ``name`` on the device ``runs`` times, after ``warm_up`` calls, with its runtime's own profiler.

        The model is opened once more for that. The result has a row for each operator, and `OperatorProfile.table`;
        ``trace``: a file to write for https://ui.perfetto.dev.

        Raises `ProfileNotSupported` where what runs the module tells no times of operators, `NotSupported` for an older
        server, `RemoteArgumentError`, `UsageError`.
        """
        from rpcsys.client import profiles  # not in the device tier

        found: OperatorProfile = profiles.submit(self, args, name, runs, warm_up).result()
        if trace is not None:
            found.save_trace(trace)
        return found


class RemoteArray(Ref):
    """An array that stays on the device; an argument like any other. Dropping it here frees it there."""

    __slots__ = ("_mine", "_session", "device", "dtype", "shape")

    def __init__(self, session: Caller, ref: Ref) -> None:
        super().__init__(ref.id)
        self._session = session
        self._mine = _Owned(session, ref.id)
        about = answers.from_device(answers.ARRAY, ref.about, "an array")
        self.dtype = str(about.get("dtype", ""))
        self.shape: Tuple[int, ...] = tuple(about.get("shape", ()))
        self.device = str(about.get("device", "cpu:0"))

    def __repr__(self) -> str:
        place = "" if self.device == "cpu:0" else f" on {self.device}"
        return printable(f"<remote array {self.dtype} {self.shape}{place}>")

    def get(self) -> Any:
        """Its contents here: a numpy array where numpy is installed, else a `Tensor`."""
        return self._session._builtin("session.get", Ref(self.id))

    def numpy(self) -> Any:
        """Its contents as a ``numpy.ndarray``."""
        value = self.get()
        return value.numpy() if hasattr(value, "numpy") else value


class _Owned:
    """The client's reference to one object of the device. At its end the device may free the object."""

    __slots__ = ("_id", "_session")

    def __init__(self, session: Caller, id: int) -> None:
        self._session = session
        self._id = id

    def __del__(self) -> None:
        self._session._channel.free(self._id)


def _target_head(target: Target) -> Any:
    return list(target) if isinstance(target, tuple) else target


def _with_written(session: Caller, arguments: Sequence[Any], frame: Frame) -> Any:
    """The result of a call that wrote into arguments: those arrays, after the function's own result if it has one."""
    result = session._result(frame)
    written = frame.get("w", [])
    if type(written) is not list or [type(item) for item in written] != [Tensor] * len(arguments):
        raise ProtocolError("the device did not send back the arrays that the function wrote into")
    for argument, tensor in zip(arguments, written):
        if isinstance(argument, InOut):
            write_back(argument.value, tensor)
    arrays = tuple(to_user(tensor, session._of_ref) for tensor in written)
    if result is not None:
        return (result, *arrays)
    return arrays[0] if len(arrays) == 1 else arrays
