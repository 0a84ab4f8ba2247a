"""Element types and array classes: names, sizes and base classes."""

import builtins
import re
import sys

_WIDE = sys.maxsize > 1 << 32
_NATIVE, _OTHER = ("<", ">") if sys.byteorder == "little" else (">", "<")
_UNITS = r"(\[[^\]]*\])?"
_SPECIFIED = re.compile(r"([<>=|]?)([biufcOSUVMm?])(\d*)%s\Z" % _UNITS)


class StubError(RuntimeError):
    """The code needs numpy, and there is only the stub."""


def _refuse(name):
    raise StubError(
        "numpy.%s: this board has rpcsys' stub of numpy, which has names and no arrays; to compute, install numpy: "
        "apt-get install python3-numpy, or python3 -m pip install numpy" % name
    )


def computes(name):
    """A replacement of a numpy function; a call of it raises StubError."""

    def function(*args, **kwargs):
        _refuse(name)

    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    return function


class _Uncreated(type):
    """The metaclass of classes without instances."""

    def __call__(cls, *args, **kwargs):
        _refuse(cls.__name__)


class generic(metaclass=_Uncreated):  # noqa: N801
    """The base class of numpy's scalars."""


class ndarray(metaclass=_Uncreated):  # noqa: N801
    """The class of arrays; it has no instances."""

    @classmethod
    def __class_getitem__(cls, item):
        return cls


def _kind(name, *bases):
    globals()[name] = kind = _Uncreated(name, bases or (generic,), {"__module__": "numpy"})
    __all__.append(name)
    return kind


__all__ = ["StubError", "dtype", "errstate", "finfo", "generic", "iinfo", "issubdtype", "ndarray", "vectorize"]
_number = _kind("number")
_integer, _inexact = _kind("integer", _number), _kind("inexact", _number)
_signed, _unsigned = _kind("signedinteger", _integer), _kind("unsignedinteger", _integer)
_floating, _complex = _kind("floating", _inexact), _kind("complexfloating", _inexact)
_flexible = _kind("flexible")
_character = _kind("character", _flexible)

#: name, base class, kind, one-letter code, bytes
_TABLE = (
    ("bool", generic, "b", "?", 1),
    ("int8", _signed, "i", "b", 1),
    ("uint8", _unsigned, "u", "B", 1),
    ("int16", _signed, "i", "h", 2),
    ("uint16", _unsigned, "u", "H", 2),
    ("int32", _signed, "i", "i", 4),
    ("uint32", _unsigned, "u", "I", 4),
    ("int64", _signed, "i", "l" if _WIDE else "q", 8),
    ("uint64", _unsigned, "u", "L" if _WIDE else "Q", 8),
    ("float16", _floating, "f", "e", 2),
    ("float32", _floating, "f", "f", 4),
    ("float64", _floating, "f", "d", 8),
    ("complex64", _complex, "c", "F", 8),
    ("complex128", _complex, "c", "D", 16),
    ("object", generic, "O", "O", 8 if _WIDE else 4),
    ("bytes", _character, "S", "S", 0),
    ("str", _character, "U", "U", 0),
    ("void", _flexible, "V", "V", 0),
    ("datetime64", generic, "M", "M", 8),
    ("timedelta64", _signed, "m", "m", 8),
)
_WORD = "int64" if _WIDE else "int32"
#: Further names of scalars.
_ALIASES = {
    "bool_": "bool", "object_": "object", "str_": "str", "bytes_": "bytes", "byte": "int8", "ubyte": "uint8",
    "short": "int16", "ushort": "uint16", "intc": "int32", "uintc": "uint32", "long": _WORD, "ulong": "u" + _WORD,
    "intp": _WORD, "uintp": "u" + _WORD, "int_": _WORD, "uint": "u" + _WORD, "longlong": "int64",
    "ulonglong": "uint64", "half": "float16", "single": "float32", "double": "float64", "csingle": "complex64",
    "cdouble": "complex128",
}  # fmt: skip
#: Python's own names: as names of scalars they end in "_"; numpy 2 has bool without it.
_PYTHONS = {"object", "str", "bytes"}
_SCALARS = {}
_BY_CODE = {}
for _name, _base, _letter, _code, _size in _TABLE:
    _SCALARS[_name] = _kind(_name + "_" if _name in _PYTHONS else _name, _base)
    _BY_CODE[_code] = _BY_CODE[_letter + str(_size)] = _name
for _name, _same in _ALIASES.items():
    if _name not in __all__:
        globals()[_name] = _SCALARS[_same]
        __all__.append(_name)
_BY_CODE.update({"q": "int64", "Q": "uint64", "l": _WORD, "L": "u" + _WORD, "p": _WORD, "P": "u" + _WORD,
                 "int": _WORD, "uint": "u" + _WORD, "float": "float64", "complex": "complex128"})  # fmt: skip
_OF_PYTHON = {builtins.bool: _SCALARS["bool"], int: _SCALARS[_WORD], float: _SCALARS["float64"],
              complex: _SCALARS["complex128"], str: _SCALARS["str"], bytes: _SCALARS["bytes"],
              object: _SCALARS["object"], None: _SCALARS["float64"]}  # fmt: skip
_FACTS = {_SCALARS[row[0]]: row for row in _TABLE}


class dtype:  # noqa: N801
    """An element type. Accepts numpy's arguments for plain types; structured types raise StubError."""

    names = fields = metadata = subdtype = None
    shape, ndim, flags = (), 0, 0

    def __init__(self, spec=None, align=False, copy=False):
        if isinstance(spec, dtype):
            vars(self).update(vars(spec))
            return
        order, scalar, size, unit = _parsed(spec)
        name, _, self.kind, self.char, _ = _FACTS[scalar]
        self.type = scalar
        self.itemsize = size
        self.name = name + unit if self.kind not in "SUV" else "%s%d" % (name, size * 8) if size else name
        self.byteorder = (
            "|"
            if size == 1 or self.kind in "SVO"
            else ">"
            if order == _OTHER == ">"
            else "<"
            if order == _OTHER
            else "="
        )
        self.isnative = self.byteorder in "=|"
        self.hasobject = self.kind == "O"
        self.alignment = size // 2 if self.kind == "c" else 4 if self.kind == "U" else 1 if self.kind in "SV" else size
        length = "" if self.kind == "O" else size // 4 if self.kind == "U" else size
        self.str = "%s%s%s%s" % (_NATIVE if self.byteorder == "=" else self.byteorder, self.kind, length, unit)

    @property
    def base(self):
        """The type itself: no type has a shape."""
        return self

    def newbyteorder(self, order="S"):
        """The same type in another byte order."""
        if order in ("S", "swap"):
            order = _OTHER if self.isnative else _NATIVE
        return dtype(order.replace("=", _NATIVE) + self.str[1:])

    def __eq__(self, other):
        try:
            return self.str == dtype(other).str
        except TypeError:
            return NotImplemented

    def __hash__(self):
        return hash(self.str)

    def __repr__(self):
        plain = self.kind in "biufc" and self.isnative
        text = self.name if plain else self.str[self.byteorder == "|" :]
        return "dtype(%r)" % (text[:-1] if text.endswith(("S0", "U0", "V0")) else text)

    def __str__(self):
        return self.str if self.kind in "SUV" or not self.isnative else self.name

    def __class_getitem__(cls, item):
        return cls

    def __reduce__(self):
        return dtype, (self.str,)


def _parsed(spec):
    """The byte order, scalar, bytes and unit of an element type's specification."""
    if spec in _OF_PYTHON if spec is None or isinstance(spec, type) else False:
        spec = _OF_PYTHON[spec]
    if isinstance(spec, type) and spec in _FACTS:
        return _NATIVE, spec, _FACTS[spec][4], ""
    if isinstance(spec, str):
        name = _ALIASES.get(spec, _BY_CODE.get(spec, spec))
        if name in _SCALARS:
            return _NATIVE, _SCALARS[name], _FACTS[_SCALARS[name]][4], ""
        match = _SPECIFIED.match(spec)
        if match:
            return _specified(spec, *match.groups())
    elif hasattr(spec, "dtype") and isinstance(spec.dtype, dtype):
        return _parsed(spec.dtype.str)
    elif isinstance(spec, (list, tuple, dict)):
        _refuse("dtype(%r)" % (spec,))
    raise TypeError("data type %r not understood" % (spec,))


def _specified(spec, order, letter, count, unit):
    """The same for ``<f4``, ``U5``, ``M8[ns]``."""
    name = _BY_CODE.get(letter + count, _BY_CODE.get(letter) if not count or letter in "SUV" else None)
    if name is None or (unit and letter not in "Mm"):
        raise TypeError("data type %r not understood" % (spec,))
    scalar = _SCALARS[name]
    size = _FACTS[scalar][4]
    if letter in "SUV":
        size = int(count or 0) * (4 if letter == "U" else 1)
    return {"=": _NATIVE, "": _NATIVE, "|": _NATIVE}.get(order, order), scalar, size, unit or ""


def issubdtype(arg1, arg2):
    """Whether the first type is the second, or extends it."""
    first, second = (
        each if isinstance(each, type) and issubclass(each, generic) else dtype(each).type for each in (arg1, arg2)
    )
    return issubclass(first, second)


class iinfo:  # noqa: N801
    """The limits of an integer type."""

    def __init__(self, type):
        self.dtype = dtype(type)
        self.kind, self.bits = self.dtype.kind, self.dtype.itemsize * 8
        if self.kind not in "iu":
            raise ValueError("Invalid integer data type %r." % self.kind)
        self.min = -(1 << (self.bits - 1)) if self.kind == "i" else 0
        self.max = (1 << (self.bits - (self.kind == "i"))) - 1


class finfo:  # noqa: N801
    """The limits of a floating-point type, as Python's floats."""

    def __init__(self, dtype):
        self.dtype = globals()["dtype"](dtype)
        self.bits = self.dtype.itemsize * 8
        if self.dtype.kind != "f":
            raise ValueError("data type %r not inexact" % (dtype,))
        self.nmant, self.maxexp = {16: (10, 16), 32: (23, 128), 64: (52, 1024)}[self.bits]
        self.minexp = 2 - self.maxexp
        self.eps = self.resolution = 2.0**-self.nmant
        self.max = 2.0 ** (self.maxexp - 1) * (2.0 - self.eps)
        self.min, self.tiny = -self.max, 2.0**self.minexp
        self.smallest_normal = self.tiny


class errstate:  # noqa: N801
    """A context manager without effect: the stub does not compute."""

    def __init__(self, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def __call__(self, function):
        return function


def vectorize(pyfunc=None, *args, **kwargs):
    """A function; a call of it raises StubError."""
    return computes("vectorize")


for _name in ("busdaycalendar", "broadcast", "flatiter", "ndenumerate", "ndindex", "nditer", "poly1d", "ufunc"):
    globals()[_name] = _Uncreated(_name, (), {"__module__": "numpy"})
    __all__.append(_name)
for _name in ("matrix", "memmap", "recarray"):
    _kind(_name, ndarray)
_kind("record", _SCALARS["void"])
