"""Functions that any session may call by name.

A module named by ``--import`` registers its functions where sessions find them::

    @rpcsys.server.register("lab.temperature")
    def temperature(): …

Arguments come as numpy arrays where numpy is installed, else as `rpcsys.wire.tensor.Tensor`; a result
may be anything the wire can carry, or a function, which then stays on the device.
"""

from __future__ import annotations

import time
from typing import Any, Callable, TypeVar

from rpcsys.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])

_functions: dict[str, Callable[..., Any]] = {}


def register(name: str) -> Callable[[Function], Function]:
    """A decorator: the function can be called as ``name`` in every session of this server.

    Raises `ConfigError` if the name is taken, or belongs to the session itself.
    """
    if name.startswith("session.") or name in _functions:
        raise ConfigError(f"a function called {name!r} is registered already; choose another name")

    def add(function: Function) -> Function:
        _functions[name] = function
        return function

    return add


def lookup(name: str) -> Callable[..., Any]:
    """The function registered as ``name``. Raises KeyError."""
    return _functions[name]


def names() -> list[str]:
    """The names of all registered functions, sorted."""
    return sorted(_functions)


@register("testing.echo")
def _echo(*args: Any) -> Any:
    return args[0] if len(args) == 1 else args


@register("testing.nop")
def _nop(*args: Any) -> None:
    return None


@register("testing.sleep")
def _sleep(seconds: float) -> None:
    time.sleep(seconds)


@register("testing.fail")
def _fail(message: str = "asked to fail") -> None:
    raise RuntimeError(message)
