"""Functions that any session may call by name: those that come with a server, and those that ``--import`` registers.

Array arguments are numpy arrays, or `Tensor` without numpy. A result is a value of the wire, or a function to keep.
"""

from __future__ import annotations

import time
from typing import Any, Callable, TypeVar

from rpcsys.errors import ConfigError, RemoteArgumentError, RemoteFunctionError

Function = TypeVar("Function", bound=Callable[..., Any])
MAX_SLEEP_S = 10**6  # twelve days: the system's clocks limit a sleep
_functions: dict[str, Callable[..., Any]] = {}


def register(name: str) -> Callable[[Function], Function]:
    """Make a decorator that registers a function as ``name`` for every session of this server.

    Raises `ConfigError` if the name is taken, or belongs to the session itself.
    """
    if name.startswith("session.") or name in _functions:
        raise ConfigError(f"a function called {name!r} is registered already; choose another name")

    def add(function: Function) -> Function:
        _functions[name] = function
        return function

    return add


def taking(
    name: str, function: Callable[..., Any], *kinds: Any, optional: int = 0, more: bool = False
) -> Callable[..., Any]:
    """Wrap ``function``, called ``name``, in a check that its arguments have these ``kinds``.

    A kind is a type, or a tuple of types; True and False are no numbers. The last ``optional`` arguments may be absent;
    with ``more``, any others may follow. The returned function raises `RemoteArgumentError`.
    """

    def checked(*args: Any) -> Any:
        enough = len(kinds) - optional <= len(args) and (more or len(args) <= len(kinds))
        fit = (isinstance(arg, kind) and (kind is object or type(arg) is not bool) for arg, kind in zip(args, kinds))
        if not enough or not all(fit):
            got = ", ".join(type(arg).__name__ for arg in args[:8]) or "nothing"
            raise RemoteArgumentError("{} takes ({}), and got ({})".format(name, ", ".join(map(_named, kinds)), got))
        return function(*args)

    return checked


def _named(kind: Any) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join("any" if one is object else one.__name__ for one in kinds)


def lookup(name: str) -> Callable[..., Any]:
    """The function registered as ``name``. Raises `RemoteFunctionError`."""
    if name not in _functions:
        raise RemoteFunctionError("the device has no function {!r}; it has {}".format(name[:200], ", ".join(names())))
    return _functions[name]


def names() -> list[str]:
    """The names of all registered functions, sorted."""
    return sorted(_functions)


@register("testing.echo")
def _echo(*args: Any) -> Any:
    return args[0] if len(args) == 1 else args


@register("testing.nop")
def _nop(*args: Any) -> None:
    pass


def _sleep(seconds: float) -> None:
    if not 0 <= seconds <= MAX_SLEEP_S:
        raise RemoteArgumentError(f"testing.sleep takes seconds, from 0 to {MAX_SLEEP_S}")
    time.sleep(seconds)


def _fail(message: str = "asked to fail") -> None:
    raise RuntimeError(message)


register("testing.sleep")(taking("testing.sleep", _sleep, (int, float)))
register("testing.fail")(taking("testing.fail", _fail, str, optional=1))
