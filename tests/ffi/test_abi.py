"""The structures, compared with apache-tvm-ffi's headers by the C compiler."""

from __future__ import annotations

import ctypes
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from rpcsys.ffi import abi

C_NAMES = {
    abi.DataType: "DLDataType",
    abi.DLDevice: "DLDevice",
    abi.Any: "TVMFFIAny",
    abi.ByteArray: "TVMFFIByteArray",
    abi.Header: "TVMFFIObject",
    abi.DLTensor: "DLTensor",
    abi.ManagedTensor: "DLManagedTensor",
    abi.VersionedTensor: "DLManagedTensorVersioned",
    abi.ShapeCell: "TVMFFIShapeCell",
}
#: Fields that C calls otherwise.
RENAMED = {
    (abi.DLDevice, "type"): "device_type",
    (abi.DLDevice, "id"): "device_id",
    (abi.Any, "type"): "type_index",
    (abi.Any, "size"): "small_str_len",
    (abi.Any, "value"): "v_int64",
    (abi.Header, "counts"): "combined_ref_count",
    (abi.Header, "type"): "type_index",
    (abi.Header, "padding"): "__padding",
    (abi.ManagedTensor, "tensor"): "dl_tensor",
    (abi.ManagedTensor, "context"): "manager_ctx",
    (abi.VersionedTensor, "tensor"): "dl_tensor",
    (abi.VersionedTensor, "context"): "manager_ctx",
    (abi.VersionedTensor, "major"): "version.major",
    (abi.VersionedTensor, "minor"): "version.minor",
}


def narrow(kind: type) -> type:
    """The same structure for 32 bits: addresses and sizes have four bytes."""
    if kind is ctypes.c_void_p or (not isinstance(kind, type(ctypes.Structure)) and hasattr(kind, "contents")):
        return ctypes.c_uint32
    if not issubclass(kind, (ctypes.Structure, ctypes.Union)):
        return kind
    base = ctypes.Union if issubclass(kind, ctypes.Union) else ctypes.Structure
    fields = [
        (name, ctypes.c_uint32 if (name, field) == ("size", ctypes.c_size_t) else narrow(field))
        for name, field in kind._fields_
    ]
    return type(kind.__name__, (base,), {"_fields_": fields})


def asserts(shape) -> str:
    """C code that compiles only if every structure equals its ctypes definition, after ``shape``."""
    lines = ["#include <stddef.h>", "#include <tvm/ffi/c_api.h>"]
    for kind, name in C_NAMES.items():
        shaped = shape(kind)
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(shaped)}, "{name}");')
        for field, *_ in kind._fields_:
            c_field = RENAMED.get((kind, field), field)
            if (kind, field) == (abi.Header, "deleter"):
                continue  # without a name in C
            lines.append(
                f'_Static_assert(offsetof({name}, {c_field}) == {getattr(shaped, field).offset}, "{name}.{field}");'
            )
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("flags", "shape"),
    [((), lambda kind: kind), (("-m32", "-malign-double"), narrow)],
    ids=["as it is here", "32 bits"],
)
def test_field_offsets_equal_those_of_c(flags, shape, tmp_path: Path) -> None:
    spec = find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        pytest.skip("the headers come with apache-tvm-ffi")
    source = tmp_path / "asserts.c"
    source.write_text(asserts(shape))
    include = Path(spec.origin).parent / "include"
    command = ["cc", "-std=c11", "-ffreestanding", "-fsyntax-only", f"-I{include}", *flags, str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_sizes_that_the_abi_fixes() -> None:
    assert ctypes.sizeof(abi.Any) == 16
    assert abi.HEADER_BYTES == 24
    assert ctypes.sizeof(narrow(abi.Any)) == 16
    assert ctypes.sizeof(narrow(abi.Header)) == 24
