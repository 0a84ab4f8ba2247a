"""The stub of numpy against the real one, on every Python, and with code that imports numpy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.device_files import ROOT
from tests.pythons import pythons

STUB = ROOT / "packaging" / "numpy_stub"
PURE = Path(sysconfig.get_path("purelib"))

#: What both are asked; each answer is compared as text.
TYPES = """
    bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128 object
    int uint float complex half single double byte short intc str bytes ? b B h H i I l L e f d F D O b1 i1 u2
    i4 u8 f2 f4 f8 c8 c16 U S U7 S7 V3 <f4 >f4 =i8 |u1 <U3 >i2 M8 M8[ns] m8[s] <M8[D]
""".split()  # noqa: SIM905
ASK = """
import json, sys
import numpy as np
def facts(spec):
    d = np.dtype(spec)
    return [d.name, d.kind, d.char, d.itemsize, d.str, d.isnative, d.hasobject, d.byteorder, repr(d), str(d),
            d.alignment, d.newbyteorder().str, d == np.dtype(spec), d.type.__mro__[0].__name__.rstrip("_")]
types = {spec: facts(spec) for spec in json.loads(sys.argv[1])}
pythons = [np.dtype(each).str for each in (bool, int, float, complex, str, bytes, object, None)]
scalars = {name: np.dtype(getattr(np, name)).str for name in "bool_ int_ intp uint8 float16 single cdouble".split()}
below = [[np.issubdtype(a, getattr(np, b)) for b in "generic number integer signedinteger floating inexact".split()]
         for a in ("int8", "uint8", "float32", "complex64", "bool", "U3", np.integer)]
limits = [[np.iinfo(t).min, np.iinfo(t).max, np.iinfo(t).bits] for t in ("int8", "uint16", "int64", np.uint64)]
floats = map(np.finfo, ("float16", "float32", "float64"))
limits += [[float(x) for x in (f.max, f.min, f.eps, f.tiny)] + [f.bits] for f in floats]
f4 = np.dtype("f4")
other = [f4 == "float32", f4 == "f8", f4 == 3, len({f4, np.dtype("float32")})]
def refused(spec):
    try:
        return np.dtype(spec).name
    except TypeError as error:
        return str(error)
bad = [refused(spec) for spec in ("quux", "f3", "U5[ns]", "i3", 3)]
print(json.dumps([types, pythons, scalars, below, limits, other, bad[:1]], sort_keys=True))
"""
IMPORTS = """
import sys
import numpy
import numpy as np
import numpy.random, numpy.linalg, numpy.testing
import numpy.typing as npt
from numpy import zeros, float32, ndarray
from numpy.linalg import norm
from numpy.exceptions import AxisError
def f(x: npt.NDArray[np.float32], y: "np.ndarray" = None) -> npt.ArrayLike: pass
with np.errstate(divide="ignore"): np.seterr(all="ignore")
square = np.vectorize(lambda x: x)
is_array, is_error = isinstance(3.0, (np.ndarray, np.generic)), issubclass(AxisError, ValueError)
print(numpy.__rpcsys_stub__, is_array, is_error, hasattr(np, "quux"))
for compute in (lambda: zeros(3), lambda: float32(1), lambda: ndarray((2,)), lambda: norm([1]),
                lambda: np.random.rand(3), lambda: square(2), lambda: np.dtype([("a", "f4")])):
    try:
        compute()
    except RuntimeError as error:
        print(error)
"""


def ask(python: str, code: str, *paths: Path, args: tuple[str, ...] = ()) -> str:
    """What ``code`` prints under an isolated Python that looks in ``paths`` after its standard library."""
    start = f"import sys; sys.path += {[str(path) for path in paths]}\n"
    done = subprocess.run(
        [python, "-I", "-S", "-B", "-c", start + code, *args], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("version", pythons())
def test_names_and_types_are_numpys(version: str) -> None:
    asked = (json.dumps(TYPES),)
    stub, real = (
        json.loads(ask(python, ASK, path, args=asked))
        for python, path in ((pythons()[version], STUB), (sys.executable, PURE))
    )
    for spec, facts in real[0].items():
        assert stub[0][spec] == facts, spec
    assert stub[1:] == real[1:]


@pytest.mark.parametrize("version", pythons())
def test_what_computes_says_that_it_is_the_stub(version: str) -> None:
    first, *errors = ask(pythons()[version], IMPORTS, STUB).splitlines()
    assert first == "True False True False"
    assert [line.partition(":")[0] for line in errors[:6]] == [
        "numpy.zeros", "numpy.float32", "numpy.ndarray", "numpy.linalg.norm", "numpy.random.rand", "numpy.vectorize",
    ]  # fmt: skip
    assert len(errors) == 7
    assert all("stub of numpy" in line and "apt-get install python3-numpy" in line for line in errors)


def test_every_public_name_of_numpy_is_there() -> None:
    code = "import sys, numpy; print(*[name for name in sys.argv[1:] if not hasattr(numpy, name)])"
    missing = ask(sys.executable, code, STUB, args=tuple(np.__all__)).split()
    own = {
        "ScalarType",
        "__array_namespace_info__",
        "c_",
        "index_exp",
        "mgrid",
        "ogrid",
        "r_",
        "s_",
        "sctypeDict",
        "typecodes",
    }
    extended = {"clongdouble", "complex256", "float128", "longdouble"}  # not of one size everywhere
    assert set(missing) == own | extended


def test_no_name_that_numpy_has_not() -> None:
    names = ask(sys.executable, "import numpy; print(*numpy._functions.FUNCTIONS)", STUB).split()
    assert [name for name in names if not hasattr(np, name)] == []


REMOVED = """
import numpy, sys
for name in [*numpy._NUMPY_1, *sys.argv[1:]]:
    try:
        getattr(numpy, name)
        print(name, "is there")
    except AttributeError as error:
        print(name, str(error).replace("numpy 2 has no numpy.%s: write " % name, ""), sep="|")
"""


@pytest.mark.parametrize("version", pythons())
def test_a_name_of_numpy_1_is_an_error_with_the_name_to_use(version: str) -> None:
    lines = ask(pythons()[version], REMOVED, STUB, args=("quux",)).splitlines()
    *instead, quux = (line.split("|") for line in lines)
    assert ["float_", "numpy.float64"] in instead
    assert ["float", "float"] in instead
    assert quux == ["quux", "rpcsys' stub of numpy has no numpy.quux"]
    for name, use in instead:
        assert name not in vars(np)
        assert eval(use, {"numpy": np}) is not None  # what to write is there
        if name in np.__expired_attributes__:
            assert use.replace("numpy.", "np.") in np.__expired_attributes__[name]


def test_every_type_that_numpy_2_has_no_more_is_known() -> None:
    known = ask(sys.executable, "import numpy; print(*numpy._NUMPY_1)", STUB).split()
    types = re.compile(r"Use `np\.(float|complex|bytes|str)\w+` instead")
    assert {name for name, text in np.__expired_attributes__.items() if types.match(text)} < set(known)


def test_the_real_numpy_wins() -> None:
    code = "import numpy; print(hasattr(numpy, '__rpcsys_stub__'), numpy.zeros(2).tolist())"
    assert ask(sys.executable, code, PURE, STUB).split() == ["False", "[0.0,", "0.0]"]


SEEN_THROUGH = """
import sys, json
sys.path.insert(0, sys.argv[1])
import numpy
from rpcsys.server import capabilities
from rpcsys.client import arrays
from rpcsys.wire import dtypes
from rpcsys.wire.frames import Frame
from rpcsys.wire.head import ParsedHead
from rpcsys.wire.frames import array_maker
from rpcsys.wire.tensor import Tensor, as_tensor
frame = Frame(2, 0, 0, 1, ParsedHead({}, ()), [b"12345678"])
tensor = array_maker({"@": "tensor", "dtype": "float32", "shape": [2], "buffer": 0})(frame)
print(json.dumps([hasattr(numpy, "__rpcsys_stub__"), dtypes.import_numpy() is None, dtypes.loaded_numpy() is None,
                  arrays.np is None, capabilities.capabilities()["numpy"], type(tensor).__name__,
                  as_tensor(memoryview(b"ab")).shape, as_tensor(3)]))
"""


@pytest.mark.parametrize("imported", [True, False])
def test_the_device_tier_sees_through_it(imported: bool) -> None:
    code = (
        SEEN_THROUGH
        if imported
        else SEEN_THROUGH.replace("import numpy\n", "").replace('hasattr(numpy, "__rpcsys_stub__")', "True")
    )
    seen: list[Any] = json.loads(ask(sys.executable, code, STUB, args=(str(ROOT),)))
    assert seen == [True, True, True, True, False, "Tensor", [2], None]


TVM = """
import tvm_ffi, tvm.runtime, tvm.runtime.vm, tvm.rpc.server, tvm.rpc.client
import numpy
print(numpy.__rpcsys_stub__, tvm.runtime.device("cpu"), tvm.rpc.server.Server.__name__)
try:
    tvm.runtime.tensor(3.0)
except RuntimeError as error:
    print(error)
"""


def test_tvms_runtime_modules(tmp_path: Path) -> None:
    """TVM's own Python, all of it that a device runs, with no package beside it but what it always needs."""
    pytest.importorskip("tvm")
    for name in ("tvm", "tvm_ffi", "typing_extensions.py", "psutil", "cloudpickle"):
        if (PURE / name).exists():
            (tmp_path / name).symlink_to(PURE / name)
    first, second = ask(sys.executable, TVM, tmp_path, STUB).splitlines()
    assert first == "True cpu:0 Server"
    assert "stub of numpy" in second
