"""Arrays of arguments and results: numpy arrays where numpy is installed, else `Tensor`."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Sequence, Union

from rpcsys.errors import ValueNotSupported
from rpcsys.wire import dtypes
from rpcsys.wire.frames import Frame, array_maker
from rpcsys.wire.tensor import Tensor, as_array, as_tensor
from rpcsys.wire.values import InOut, Out, Ref

np: Any = dtypes.import_numpy()


def empty(shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Out:
    """An array argument that a function only writes: the device takes the memory, and sends the array back.

    ``dtype`` is a name such as ``"float32"``, or any dtype of numpy. Raises `ValueNotSupported`.
    """
    return Out(shape if isinstance(shape, (tuple, list)) else (shape,), _dtype_name(dtype))


def _dtype_name(dtype: Any) -> str:
    if dtype in dtypes.ITEM_BYTES:
        return str(dtype)
    if np is None:
        raise ValueNotSupported(f"{dtype!r} is no dtype of the wire; without numpy, name one such as 'float32'")
    try:
        return dtypes.name_of_numpy(np.dtype(dtype))
    except TypeError as error:
        raise ValueNotSupported(f"{dtype!r} is no dtype: {error}") from None


def inout(value: Any) -> InOut:
    """An array argument that is sent both ways: the array that comes back is copied into ``value``."""
    return InOut(value)


def to_user(value: Any, of_ref: Callable[[Ref], Any]) -> Any:
    """A received value for the user: numpy arrays where numpy is installed; ``of_ref`` converts refs."""
    kind = type(value)
    if kind is Tensor:
        return as_array(value)
    if kind is Ref:
        return of_ref(value)
    if kind is list or kind is tuple:
        return kind(to_user(item, of_ref) for item in value)
    if kind is dict:
        return {key: to_user(item, of_ref) for key, item in value.items()}
    return value


def result_maker(head: Any) -> Union[Callable[[Frame], Any], bool]:
    """A function that makes the result from a frame, if the head alone decides how; else False."""
    if type(head) is not dict and type(head) is not list:
        return lambda frame: head
    return array_maker(head) or False


def outputs_of(args: Iterable[Any]) -> List[Any]:
    """The arguments that the device sends back, in its order."""
    found: List[Any] = []
    for arg in args:
        if isinstance(arg, (Out, InOut)):
            found.append(arg)
        elif isinstance(arg, (list, tuple)):
            found.extend(outputs_of(arg))
        elif isinstance(arg, dict):
            found.extend(outputs_of(arg.values()))
    return found


def write_back(target: Any, written: Tensor) -> None:
    """Copy the array that a function wrote into the one that was passed as `inout`.

    Does nothing for a read-only array: the call also returns the new contents.
    """
    if np is not None and isinstance(target, np.ndarray):
        if target.flags.writeable:
            target[...] = written.numpy()
        return
    tensor = as_tensor(target)
    if tensor is not None and isinstance(tensor.data, memoryview) and not tensor.data.readonly:
        tensor.data[:] = written.data
