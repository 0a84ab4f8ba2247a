"""From a file to a module that runs: which kind of file is loaded by what.

The packages that a kind needs are imported when the first file of that kind is loaded.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Protocol, Sequence, Tuple

from rpcsys.errors import ModelError

#: Ending of a file -> the packages that must be there to load it.
SUFFIXES: Dict[str, Tuple[str, ...]] = {".onnx": ("numpy", "onnxruntime"), ".so": ()}


class Module(Protocol):
    """A loaded model."""

    kind: str

    def describe(self) -> Dict[str, Any]:
        """What a client is told of it: kind, functions, inputs, outputs."""

    def function(self, name: str) -> Callable[..., Any]:
        """A callable of positional arrays. Raises `RemoteFunctionError`."""

    def run(self, inputs: Dict[str, Any], outputs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """``main`` by names. Raises `RemoteArgumentError`."""


def load_file(path: str, name: str) -> Module:
    """Load the model at ``path``; ``name`` is what it is called in messages.

    Raises `ModelError` for a file of an unknown kind, one that is broken, or a missing package.
    """
    if path.endswith(".onnx"):
        try:
            from rpcsys.module.kinds import onnx
        except ImportError as error:
            raise model_error(
                f"{name} needs onnxruntime on the device, and it cannot be imported ({error}); pip install onnxruntime there"
            ) from None
        return onnx.load(path, name)
    if path.endswith(".so"):
        from rpcsys.module.kinds import native

        return native.load(path, name)
    raise model_error("{}: no loader for this kind of file; known are {}".format(name, ", ".join(SUFFIXES)))


def model_error(message: str) -> ModelError:
    """A `ModelError` that says ``message``."""
    return ModelError(message, type="ModelError")
