"""The names of element types, compared to those of numpy and ml_dtypes."""

from __future__ import annotations

import array
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError, ValueNotSupported
from rpcsys.wire import dtypes
from tests.device_files import ROOT
from tests.wire.strategies import NAMES, WIDE


def test_the_table_has_all_types_of_numpy_and_ml_dtypes():
    plain = {np.dtype(code).name for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"}
    small = {
        name
        for name in dir(ml_dtypes)
        if re.fullmatch(r"(bfloat|float[468]_|u?int[24]).*", name) and isinstance(getattr(ml_dtypes, name), type)
    }
    assert plain | small <= set(dtypes.ITEM_BYTES) | {"int1", "uint1"}
    assert {"float128", "bfloat16", "float8_e4m3fn", "int4"} <= set(NAMES)


@pytest.mark.parametrize("name", [*NAMES, *WIDE])
def test_sizes_and_names_are_numpys(name):
    dtype = dtypes.numpy_dtype(name)
    assert dtypes.item_bytes(name) == dtype.itemsize
    assert dtypes.name_of_numpy(dtype) == name


@pytest.mark.parametrize("code", "?bhilqBHILQfd")
def test_names_of_arrays_and_memoryviews_are_numpys(code):
    view = memoryview(array.array("b" if code == "?" else code, [1]))
    view = view.cast("B").cast(code) if code == "?" else view
    name = dtypes.name_of_format(view.format, view.itemsize)
    assert name == np.asarray(view).dtype.name
    assert dtypes.item_bytes(name) == view.itemsize


@pytest.mark.parametrize(("code", "size", "name"), [("<i", 4, "int32"), ("@f", 4, "float32"), ("=e", 2, "float16"),
                                                    ("c", 1, "S1"), ("n", 8, "int64"), ("N", 4, "uint32")])  # fmt: skip
def test_formats_of_platform_dependent_size(code, size, name):
    assert dtypes.name_of_format(code, size) == name


@pytest.mark.parametrize("code", [">i", "!d", "u", "w", "P", "Zd", "T{i:x:}", "2i", ""])
def test_formats_without_a_name(code):
    with pytest.raises(ValueNotSupported):
        dtypes.name_of_format(code, 4)


@pytest.mark.parametrize("dtype", ["O", "i4,f8", "(2,)i4", [("a", "f4")], np.dtypes.StringDType()])
def test_dtypes_without_a_name(dtype):
    with pytest.raises(ValueNotSupported, match="has no form on the wire"):
        dtypes.name_of_numpy(np.dtype(dtype))


@pytest.mark.parametrize(
    "name",
    ["", "float", "f4", "Float32", "float32 ", "float32\n", "S", "S-1", "S01", "U99999999", "S16777217", "V1\n", "O",
     "object", "datetime64[]", "datetime64[ns", "datetime64[1.5s]", "datetime64[ns]x", None, 4, ["float32"], b"float32",
     True, {}],
)  # fmt: skip
def test_an_invalid_name_is_refused(name):
    with pytest.raises(ProtocolError):
        dtypes.item_bytes(name)


@given(st.one_of(st.text(max_size=30), st.from_regex(r"(datetime64|timedelta64)(\[[0-9]{0,9}[A-Za-zμ]{1,8}\])?")))
def test_any_name_is_known_or_refused_as_in_numpy(name):
    try:
        size = dtypes.item_bytes(name)
    except ProtocolError:
        return
    dtype = dtypes.numpy_dtype(name)
    assert dtype is None or dtype.itemsize == size


WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
from rpcsys.wire import dtypes
from rpcsys.wire.tensor import Tensor
print(dtypes.numpy_dtype("float32"), dtypes.numpy_dtype("bfloat16"))
try:
    Tensor("bfloat16", (1,), b"ab").numpy()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_numpy_without_ml_dtypes():
    done = subprocess.run([sys.executable, "-c", WITHOUT_ML_DTYPES], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines() == [
        "float32 None",
        "ValueNotSupported numpy here has no element type bfloat16; install ml_dtypes",
    ], done.stderr


def test_struct_formats():
    assert (dtypes.format_of_name("int16"), dtypes.format_of_name("bfloat16"), dtypes.format_of_name("S1")) == (
        "h", None, None,
    )  # fmt: skip


def test_counts():
    assert (dtypes.count(()), dtypes.count((3, 4)), dtypes.count((3, 0))) == (1, 12, 0)


def test_numpy_is_found_once(monkeypatch):
    monkeypatch.setattr(dtypes, "_numpy", None)
    assert dtypes.loaded_numpy() is np is dtypes.import_numpy()
    monkeypatch.setitem(sys.modules, "numpy", None)  # as an import finds it where there is none
    assert dtypes.import_numpy() is np


def test_without_numpy_a_need_for_it_is_an_import_error(monkeypatch):
    monkeypatch.setattr(dtypes, "_numpy", None)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert dtypes.import_numpy() is None is dtypes.loaded_numpy()
    with pytest.raises(ImportError, match="pip install numpy"):
        dtypes.need_numpy()


def test_loaded_numpy_imports_nothing(monkeypatch):
    monkeypatch.setattr(dtypes, "_numpy", None)
    monkeypatch.delitem(sys.modules, "numpy")
    assert dtypes.loaded_numpy() is None
    assert "numpy" not in sys.modules
