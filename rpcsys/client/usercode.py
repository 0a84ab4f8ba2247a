"""Functions of the user's own, on their way to a device that takes them."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict

from rpcsys.errors import RemoteFunctionError, UsageError

VERSION = "{}.{}".format(*sys.version_info[:2])


def pickled(function: Callable[..., Any], capabilities: Dict[str, Any]) -> bytes:
    """``function`` for a device with these capabilities; what it cannot run is refused before it is sent.

    Raises `RemoteFunctionError` for what the device says it cannot do, `UsageError` for what cannot be sent.
    """
    if capabilities.get("pickle") is not True:
        raise RemoteFunctionError(
            "this server runs no functions of its clients; start it with --allow-pickle if they may"
        )
    theirs = capabilities.get("python")
    if theirs != VERSION:
        raise RemoteFunctionError(
            f"the device has Python {theirs} and this is Python {VERSION}: a function runs in the minor version it was made with"
        )
    if capabilities.get("cloudpickle") is not True:
        raise RemoteFunctionError("the device has no cloudpickle; there: python3 -m pip install cloudpickle")
    try:
        import cloudpickle
    except ImportError:
        raise UsageError("session.run needs cloudpickle here, too: python -m pip install cloudpickle") from None
    try:
        blob: bytes = cloudpickle.dumps(function)
    except Exception as error:  # noqa: BLE001 - whatever in a closure refuses to be pickled
        raise UsageError(f"{function!r} cannot be sent: {error}") from None
    return blob
