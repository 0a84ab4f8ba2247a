"""The functions that make up a session: files, modules, arrays, timing. Called like any other function."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Dict, List

from rpcsys.errors import RemoteArgumentError, RemoteFunctionError
from rpcsys.module import loading
from rpcsys.module.module import Module
from rpcsys.server.session import objects, registry, user_code
from rpcsys.server.session.evaluator import measure
from rpcsys.wire.checks import shown
from rpcsys.wire.tensor import as_tensor

if TYPE_CHECKING:
    from rpcsys.server.session.session import Session


class Operations:
    """Everything a client can call in one session, by target."""

    def __init__(self, session: Session, *, allow_pickle: bool) -> None:
        self._session = session
        self._objects = session.objects
        self._directory = session.directory
        self._allow_pickle = allow_pickle
        self._named: Dict[str, Callable[..., Any]] = {}
        self._add("session.has_function", self._has_function, str)
        self._add("session.load_module", self._load_module, str)
        self._add("session.listdir", self._directory.listdir, str, optional=1)
        self._add("session.remove", self._directory.remove, str)
        self._add("session.offer", session.files.offer, str, int, str)
        self._add("session.memory", session.objects.memory)
        self._add("session.put", self._put, object)
        self._add("session.get", self._get, object)
        self._add("session.run", user_code.runner(allow_pickle), str, (bytes, memoryview), more=True)
        self._add("session.time", self._time, (str, int, list), (list, tuple), dict)
        self._add("session.functions", registry.names)

    def _add(self, name: str, function: Callable[..., Any], *kinds: Any, **more: Any) -> None:
        self._named[name] = registry.taking(name, function, *kinds, **more)

    def resolve(self, target: Any) -> Callable[..., Any]:
        """The callable for what a CALL names: a function, an object, or ``[object, name]``.

        Raises `RemoteFunctionError` when there is none.
        """
        if type(target) is str:
            return self._named.get(target) or self._registered(target)
        if type(target) is list and len(target) == 2 and type(target[1]) is str:
            function: Callable[..., Any] = self.module(target[0]).function(target[1])
            return function
        value = self._objects.get(target)
        if not callable(value):
            raise RemoteFunctionError(f"object {shown(target)} of this session is no function")
        return value  # type: ignore[no-any-return]

    def module(self, id: Any) -> Module:
        """The loaded module of that number. Raises `RemoteFunctionError`."""
        value = self._objects.get(id)
        if not hasattr(value, "function"):
            raise RemoteFunctionError(f"object {shown(id)} of this session is no module")
        return value  # type: ignore[no-any-return]

    def _registered(self, name: str) -> Callable[..., Any]:
        try:
            function = self._named[name] = registry.lookup(name)
            return function
        except KeyError:
            raise RemoteFunctionError(
                "the device has no function {!r}; it has {}".format(name[:200], ", ".join(registry.names()))
            ) from None

    def _has_function(self, name: str) -> None:
        self.resolve(name)

    def _load_module(self, name: str) -> Any:
        # Built-in functions say what they keep themselves; a module is described by its kind.
        return loading.load_file(self._directory.existing(name), name, allow_pickle=self._allow_pickle)

    def _put(self, value: Any) -> Any:
        if as_tensor(value) is None:
            raise RemoteArgumentError(f"session.array takes an array, not a {type(value).__name__}")
        return objects.keep_arrays(value, self._objects)

    def _get(self, value: Any) -> Any:
        return value

    def _time(self, target: Any, args: List[Any], options: Dict[str, Any]) -> Dict[str, Any]:
        return measure(functools.partial(self.resolve(target), *args), options)
