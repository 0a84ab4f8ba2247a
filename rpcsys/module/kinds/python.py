"""Kind ``rpcsys.python``: Python functions, through cloudpickle. They can run any code: loaded only where allowed.

cloudpickle stores a function's bytecode, which is valid in one minor version of Python only.
"""

from __future__ import annotations

import sys
from typing import Dict, Mapping, Optional, Sequence

from rpcsys.errors import ModelError, UsageError
from rpcsys.module import packed
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Function, Module
from rpcsys.module.registry import Context

KIND = "rpcsys.python"
VERSION = "{}.{}".format(*sys.version_info[:2])
_PROTOCOL = 5  # the newest of Python 3.8


class PythonModule(Module):
    """Python functions. ``pickled`` are the bytes that they were loaded from, if any."""

    def __init__(
        self, functions: Mapping[str, Function], imports: Sequence[Module] = (), pickled: Optional[Buffer] = None
    ) -> None:
        super().__init__(KIND, functions, imports)
        self.pickled = pickled


def python(functions: Mapping[str, Function], imports: Sequence[Module] = ()) -> PythonModule:
    """Make a module of these functions, each with all that it refers to. Loading it must be allowed explicitly."""
    return PythonModule(functions, imports)


def save_to_bytes(module: PythonModule, offset: int) -> Sequence[Buffer]:
    """The functions, pickled. Raises `UsageError` if one cannot be pickled."""
    about: Dict[str, object] = {"python": VERSION, "functions": module.names()}
    pickled = module.pickled
    if pickled is None:
        try:
            import cloudpickle
        except ImportError:
            raise UsageError("saving Python functions needs cloudpickle: python -m pip install cloudpickle") from None
        try:
            pickled = cloudpickle.dumps(module._functions, _PROTOCOL)
        except Exception as error:  # noqa: BLE001 - a value in a closure may raise any exception
            raise UsageError("{} cannot be saved: {}".format(", ".join(module.names()), error)) from None
    return packed.pack(about, [pickled], offset)


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """Load the functions. Raises `FormatError`; `ModelError` if they are not allowed or cannot run here."""
    about, buffers = packed.unpack(data)
    names = about.get("functions")
    if len(buffers) != 1 or not isinstance(names, list):
        raise FormatError("is broken (Python functions inside are not described)")
    if not context.allow_pickle:
        how = "if you trust it: load_module(..., allow_pickle=True), or a server started with --allow-pickle"
        raise ModelError(f"{context.name} holds Python functions, which can do anything; {how}")
    if about.get("python") != VERSION:
        text = f"{context.name} holds functions of Python {about.get('python')}, and this is Python {VERSION}"
        raise ModelError(f"{text}: they run in the minor version they were made with")
    try:
        import cloudpickle
    except ImportError:
        text = "cloudpickle is not here; there: python3 -m pip install cloudpickle"
        raise ModelError(f"{context.name} holds Python functions, and {text}") from None
    functions = cloudpickle.loads(buffers[0])
    if not isinstance(functions, dict) or list(functions) != names or not all(map(callable, functions.values())):
        raise FormatError("is broken (its list of Python functions does not match them)")
    return PythonModule(functions, pickled=buffers[0])
