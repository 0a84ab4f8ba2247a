"""Functions that a client brings along, where the server was started with ``--allow-pickle``.

They come through cloudpickle, which carries a function's bytecode: that is the same in one minor version of
Python only. Arguments and results travel as those of any call.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from rpcsys.errors import RemoteFunctionError

VERSION = "{}.{}".format(*sys.version_info[:2])


def runner(allowed: bool) -> Callable[..., Any]:
    """The function ``session.run`` of a session."""
    return run if allowed else _refuse


def run(python: str, pickled: bytes, *args: Any) -> Any:
    """Call the function that ``pickled`` holds, made by that minor version of Python.

    Raises `RemoteFunctionError` when it cannot be one here, and whatever the function raises.
    """
    if python != VERSION:
        raise RemoteFunctionError(
            f"a function of Python {python} cannot run in Python {VERSION}, which this device has"
        )
    return _loaded(pickled)(*args)


def _loaded(pickled: bytes) -> Callable[..., Any]:
    try:
        import cloudpickle
    except ImportError:
        raise RemoteFunctionError("this device has no cloudpickle; there: python3 -m pip install cloudpickle") from None
    try:
        function = cloudpickle.loads(pickled)
    except ModuleNotFoundError as error:
        raise RemoteFunctionError(
            f"the function needs the module {error.name!r}, which this device has not; upload and import it in the function, "
            "or send it along: cloudpickle.register_pickle_by_value(module)"
        ) from None
    except Exception as error:  # noqa: BLE001 - what is broken, or refuses, may raise anything
        raise RemoteFunctionError(
            f"what was sent for session.run cannot be loaded ({type(error).__name__}: {error})"
        ) from None
    if not callable(function):
        raise RemoteFunctionError(f"session.run takes a function, not a {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def _refuse(*args: Any) -> Any:
    raise RemoteFunctionError("this server runs no functions of its clients; start it with --allow-pickle if they may")
