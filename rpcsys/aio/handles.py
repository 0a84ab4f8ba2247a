"""Handles of objects on the device, for tasks."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from rpcsys.aio.calls import AsyncCalls
from rpcsys.client import profiles
from rpcsys.client.profiles import OperatorProfile
from rpcsys.client.remote import RemoteArray, RemoteFunction, RemoteModule, TimeEvaluator
from rpcsys.client.timing import TimingResult, told
from rpcsys.wire.values import Ref

#: Measures a function with the arguments that it is given.
Measure = Callable[..., Coroutine[Any, Any, TimingResult]]


class AsyncRemoteFunction:
    """A function on the device. Arguments, results and errors are those of `RemoteFunction`."""

    def __init__(self, calls: AsyncCalls, function: RemoteFunction) -> None:
        self._calls = calls
        self.blocking = function
        self.name = function.name

    def __repr__(self) -> str:
        return f"<async remote function {self.name}>"

    async def __call__(self, *args: Any, keep: bool = False, deadline_s: float | None = None) -> Any:
        return await self._calls.run(functools.partial(self.blocking.submit, *args, keep=keep, deadline_s=deadline_s))

    async def submit(self, *args: Any, keep: bool = False, deadline_s: float | None = None) -> asyncio.Future[Any]:
        """Call without waiting for the result: returns its future when the call is sent.

        Waits while the device's window is full. AsyncCalls run in the order of their submission.
        """
        start = functools.partial(self.blocking.submit, *args, keep=keep, deadline_s=deadline_s)
        return await self._calls.submit(start)

    def encoding(self, results: Mapping[str, str]) -> AsyncRemoteFunction:
        """The same function with encoded results, as `RemoteFunction.encoding`."""
        return AsyncRemoteFunction(self._calls, self.blocking.encoding(results))

    def time_evaluator(self, number: int = 10, repeat: int = 1, **options: float) -> Measure:
        """Measure this function: ``await evaluator(*args)``. Options as for `RemoteFunction.time_evaluator`."""
        return _measuring(self._calls, self.blocking.time_evaluator(number, repeat, **options))  # type: ignore[arg-type]


class AsyncRemoteModule:
    """A model that is loaded on the device. Attributes as for `RemoteModule`."""

    def __init__(self, calls: AsyncCalls, module: RemoteModule) -> None:
        self._calls = calls
        self.blocking = module
        self.kind = module.kind
        self.functions = module.functions
        self.inputs = module.inputs
        self.outputs = module.outputs
        self._main = AsyncRemoteFunction(calls, module["main"])

    def __repr__(self) -> str:
        return f"<async {repr(self.blocking)[1:]}"

    def _repr_html_(self) -> str:
        return self.blocking._repr_html_()

    def __getitem__(self, name: str) -> AsyncRemoteFunction:
        """The function ``name``. Raises `RemoteFunctionError` where the module has none of that name."""
        return AsyncRemoteFunction(self._calls, self.blocking[name])

    async def __call__(self, *args: Any, keep: bool = False, deadline_s: float | None = None) -> Any:
        """Run ``main``: one output is the array, several are a tuple."""
        return await self._main(*args, keep=keep, deadline_s=deadline_s)

    async def submit(self, *args: Any, keep: bool = False, deadline_s: float | None = None) -> asyncio.Future[Any]:
        """Run ``main`` without waiting for the result, as `AsyncRemoteFunction.submit`."""
        return await self._main.submit(*args, keep=keep, deadline_s=deadline_s)

    async def run(
        self, inputs: dict[str, Any], outputs: Sequence[str] | None = None, *, keep: bool = False
    ) -> dict[str, Any]:
        """Run ``main`` by names: inputs as a dict, the wanted outputs (all if None) as a dict. One round trip."""
        start = functools.partial(self.blocking.submit_run, inputs, outputs, keep=keep)
        named: dict[str, Any] = await self._calls.run(start)
        return named

    def time_evaluator(self, name: str = "main", number: int = 10, repeat: int = 1, **options: float) -> Measure:
        """Measure a function of this module on the device, as `AsyncRemoteFunction.time_evaluator`."""
        return _measuring(self._calls, self.blocking.time_evaluator(name, number, repeat, **options))  # type: ignore[arg-type]

    async def profile(self, *args: Any, name: str = "main", runs: int = 10, warm_up: int = 2) -> OperatorProfile:
        """Profile a function of this module, as `RemoteModule.profile`; the result's ``save_trace`` writes a trace."""
        start = functools.partial(profiles.submit, self.blocking, args, name, runs, warm_up)
        found: OperatorProfile = await self._calls.run(start)
        return found


class AsyncRemoteArray(RemoteArray):
    """An array that stays on the device; an argument like any other. Dropping it here frees it there."""

    __slots__ = ("_calls",)

    def __init__(self, calls: AsyncCalls, array: RemoteArray) -> None:
        Ref.__init__(self, array.id)
        self._calls = calls
        self._session, self._mine = array._session, array._mine
        self.dtype, self.shape, self.device = array.dtype, array.shape, array.device

    async def get(self) -> Any:
        """Its contents here: a numpy array where numpy is installed, else a `Tensor`."""
        return await self._calls.builtin("session.get", Ref(self.id))

    async def numpy(self) -> Any:
        """Its contents as a ``numpy.ndarray``."""
        value = await self.get()
        return value.numpy() if hasattr(value, "numpy") else value


def _measuring(calls: AsyncCalls, evaluator: TimeEvaluator) -> Measure:
    async def measure(*args: Any) -> TimingResult:
        return told(await calls.run(functools.partial(evaluator.submit, *args)))

    return measure


def for_tasks(calls: AsyncCalls, value: Any) -> Any:
    """A call's result, with the handles in it as tasks use them."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(for_tasks(calls, item) for item in value)
    if kind is dict:
        return {key: for_tasks(calls, item) for key, item in value.items()}
    make = _FOR_TASKS.get(kind)
    return make(calls, value) if make is not None else value


_FOR_TASKS: dict[type, Callable[[AsyncCalls, Any], Any]] = {
    RemoteArray: AsyncRemoteArray,
    RemoteFunction: AsyncRemoteFunction,
    RemoteModule: AsyncRemoteModule,
}
