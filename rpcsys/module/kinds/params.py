"""Kind ``rpcsys.params``: named weights that several modules can import and share. Mapped, not copied.

They are saved in the order of their names, so that the same weights give the same bytes.
"""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from rpcsys.errors import ProtocolError, RemoteArgumentError, UsageError, there_are
from rpcsys.module import packed
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Module
from rpcsys.module.registry import Context, File
from rpcsys.wire import dtypes
from rpcsys.wire.tensor import Tensor, as_array, as_tensor

KIND = "rpcsys.params"
_MAX_RANK, _MAX_EXTENT = 64, 1 << 48


class ParamsModule(Module):
    """Weights by name. Functions: ``get_param(name)`` and ``param_names()``."""

    METHODS: ClassVar[Mapping[str, str]] = {"get_param": "get", "param_names": "known"}

    def __init__(self, tensors: Mapping[str, Tensor], file: Optional[File] = None) -> None:
        super().__init__(KIND)
        self.tensors: Dict[str, Tensor] = {name: tensors[name] for name in sorted(tensors)}  # read-only
        self.file = file  # the mapped file that contains their memory, or None

    def get(self, name: str) -> Any:
        """The weight ``name``: a read-only numpy array if numpy is in use. Raises `RemoteArgumentError`."""
        tensor = self.tensors.get(name)
        if tensor is None:
            known = list(self.tensors)
            shown = [*known[:20], "…"] if len(known) > 20 else known
            raise RemoteArgumentError(f"there is no weight {str(name)[:200]!r}; {there_are(shown)}")
        return as_array(tensor)

    def known(self) -> List[str]:
        """The names of the weights, sorted."""
        return [*self.tensors]

    def place(self, device: str) -> None:
        """Stay in the host's memory, from which each module that shares these weights takes them."""

    def release(self) -> None:
        super().release()
        self.tensors, self.file = {}, None


def params(weights: Mapping[str, Any]) -> ParamsModule:
    """Make a module of these arrays (numpy's, or any other value that a session takes for an array).

    Raises `UsageError` for a value that is not an array, and for arrays of strings.
    """
    tensors = {name: as_tensor(value) for name, value in weights.items()}
    for name, tensor in tensors.items():
        if tensor is None or tensor.dtype == "strings":
            raise UsageError(f"weight {name!r} is no array of numbers")
    return ParamsModule({name: tensor for name, tensor in tensors.items() if tensor is not None})


def listing(tensors: Mapping[str, Tensor]) -> List[Tuple[str, str, Tuple[int, ...]]]:
    """The description of weights that is saved beside their bytes: name, dtype and shape, in order."""
    return [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]


def listed(rows: Any, buffers: Sequence[memoryview]) -> Dict[str, Tensor]:
    """Weights from their `listing` and their bytes. Raises `FormatError` if the two do not agree."""
    if not isinstance(rows, list) or len(rows) != len(buffers):
        raise FormatError("is broken (its list of weights does not match its buffers)")
    tensors: Dict[str, Tensor] = {}
    for row, data in zip(rows, buffers):
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str):
            raise FormatError("is broken (a weight has no name)")
        name, dtype, shape = row
        if not _fits(dtype, shape, len(data)):
            raise FormatError(f"is broken (weight {name[:200]!r} has other bytes than its type and shape want)")
        tensors[name] = Tensor(dtype, shape, data)
    return tensors


def _fits(dtype: Any, shape: Any, size: int) -> bool:
    if not isinstance(shape, list) or len(shape) > _MAX_RANK:
        return False
    if not all(type(extent) is int and 0 <= extent <= _MAX_EXTENT for extent in shape):
        return False
    try:
        return dtypes.item_bytes(dtype) * dtypes.count(tuple(shape)) == size
    except ProtocolError:
        return False


def save_to_bytes(module: ParamsModule, offset: int) -> Sequence[Buffer]:
    """The weights' bytes in pieces, without copies."""
    buffers = [tensor.data for tensor in module.tensors.values()]
    return packed.pack({"weights": listing(module.tensors)}, buffers, offset)


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """The weights, as views of the bytes. Raises `FormatError`."""
    about, buffers = packed.unpack(data)
    return ParamsModule(listed(about.get("weights"), buffers), context.file)
