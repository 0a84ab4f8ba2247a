"""A stub of numpy for boards without it: names and element types, without computation.

Code that imports numpy for annotations, ``isinstance`` and ``dtype`` works; code that needs an array raises `StubError`
with the package to install. ``numpy.__rpcsys_stub__`` marks the stub; an installed numpy always comes first.
``hasattr`` gives the same results as for numpy 2: a name that only numpy 1 has is an error with the name to use.
"""

import sys
import types

from numpy._functions import FUNCTIONS
from numpy._types import *  # noqa: F403
from numpy._types import StubError, computes

__rpcsys_stub__ = True
__version__ = "2.0.0+rpcsys.stub"

newaxis = None
nan, inf, pi, e, euler_gamma = (float("nan"), float("inf"), 3.141592653589793, 2.718281828459045, 0.5772156649015329)
True_, False_ = True, False
little_endian = sys.byteorder == "little"

#: Names of types and constants that only numpy 1 has -> what to write instead.
_NUMPY_1 = {
    "float_": "numpy.float64", "complex_": "numpy.complex128", "singlecomplex": "numpy.complex64",
    "cfloat": "numpy.complex128", "string_": "numpy.bytes_", "unicode_": "numpy.str_", "bool8": "numpy.bool_",
    "Inf": "numpy.inf", "Infinity": "numpy.inf", "NaN": "numpy.nan", "int": "int", "float": "float",
    "complex": "complex", "object": "object", "str": "str",
}  # fmt: skip
_SETTINGS = ("seterr", "seterrcall", "setbufsize", "set_printoptions")
_MODULES = (
    "_core", "char", "core", "ctypeslib", "dtypes", "emath", "exceptions", "f2py", "fft", "lib", "linalg", "ma",
    "polynomial", "random", "rec", "strings", "testing", "typing",
)  # fmt: skip


def __getattr__(name):
    """Raise AttributeError with what to write instead."""
    instead = "numpy 2 has no numpy.%s: write " % name + _NUMPY_1[name] if name in _NUMPY_1 else ""
    raise AttributeError(instead or "rpcsys' stub of numpy has no numpy.%s" % name)


def _ignored(*args, **kwargs):
    """Accept settings of computing and printing, and ignore them."""


def _module(name):
    """A module of numpy in which each attribute is a function that raises StubError."""
    module = types.ModuleType("numpy." + name)

    def find(attribute):
        if attribute.startswith("_"):
            raise AttributeError("module 'numpy.%s' has no attribute %r" % (name, attribute))
        return computes("%s.%s" % (name, attribute))

    module.__getattr__ = find
    module.__path__ = []
    sys.modules["numpy." + name] = module
    return module


for _name in FUNCTIONS:
    globals()[_name] = computes(_name)
for _name in _SETTINGS:
    globals()[_name] = _ignored
for _name in _MODULES:
    globals()[_name] = _module(_name)


class _Subscribed:
    """A name for annotations: ``NDArray[float32]``."""

    def __init__(self, name):
        self.__name__ = name

    def __getitem__(self, item):
        return self

    def __repr__(self):
        return "numpy.typing." + self.__name__


typing.NDArray, typing.ArrayLike, typing.DTypeLike = map(_Subscribed, ("NDArray", "ArrayLike", "DTypeLike"))  # noqa: F821
for _name in ("AxisError", "ComplexWarning", "DTypePromotionError", "RankWarning", "VisibleDeprecationWarning"):
    setattr(exceptions, _name, type(_name, (UserWarning if "Warning" in _name else ValueError,), {}))  # noqa: F821
