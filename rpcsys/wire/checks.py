"""Checks of the fields of control messages, and the base class of these messages.

A check takes a JSON value and the field's name. It returns the value that the message keeps, or raises `ProtocolError`
with the field's name. A message class lists its fields with `field`; further fields of a newer peer are ignored.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Callable, ClassVar, TypeVar

from rpcsys.errors import ProtocolError
from rpcsys.wire import keys

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        """For the type checker alone: a board has no typing_extensions."""
        return lambda cls: cls


Check = Callable[[Any, str], Any]
AnyMessage = TypeVar("AnyMessage", bound="Message")

#: The largest id and epoch. A double holds them exactly, for peers with doubles as their only JSON numbers.
MAX_ID = 2**53
#: Three thousand years. The limit keeps sums of received durations finite.
MAX_SECONDS = 10**11
#: Characters of a name, a user or an address: a host name has at most 253.
MAX_TEXT = 256
#: Entries of a list or a mapping in a control message: more than the slots or labels of any server.
MAX_ITEMS = 4096


def shown(value: Any) -> str:
    """A short text for any JSON value, however large or deep it is."""
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    quoted = ascii(value[:60] if isinstance(value, str) else value)
    return quoted if len(quoted) <= 60 else quoted[:57] + "..."


def wrong(name: str, wanted: str, value: Any) -> ProtocolError:
    """The error for a field with a value that is not allowed."""
    return ProtocolError(f"{name} must be {wanted}, not {shown(value)}")


def integer(low: int, high: int) -> Check:
    """A whole number from ``low`` to ``high``."""

    def check(value: Any, name: str) -> int:
        if type(value) is not int or not low <= value <= high:
            raise wrong(name, f"a whole number from {low} to {high}", value)
        return value

    return check


def number(value: Any, name: str) -> float:
    """A finite number that a double can hold. ``True`` and ``False`` are refused."""
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int and -MAX_ID <= value <= MAX_ID:
        return value
    raise wrong(name, "a number", value)


def seconds(value: Any, name: str) -> float:
    """A duration in seconds, 0 or more. A larger one becomes `MAX_SECONDS`."""
    span = number(value, name)
    if span < 0:
        raise wrong(name, "a number of seconds", value)
    return min(span, MAX_SECONDS)


def text(value: Any, name: str) -> str:
    """At most `MAX_TEXT` printable characters."""
    if type(value) is not str or len(value) > MAX_TEXT or not value.isprintable():
        raise wrong(name, f"printable text of at most {MAX_TEXT} characters", value)
    return value


def sentence(value: Any, name: str) -> str:
    """Text for people, of any length that fits the frame."""
    if type(value) is not str:
        raise wrong(name, "text", value)
    return value


def flag(value: Any, name: str) -> bool:
    """``true`` or ``false``."""
    if type(value) is not bool:
        raise wrong(name, "true or false", value)
    return value


def key(value: Any, name: str) -> str:
    """A device key."""
    if not keys.is_key(value):
        raise wrong(name, "a device key (no space, comma or bracket)", value)
    return str(value)


def match_key(value: Any, name: str) -> str:
    """A match key."""
    if not keys.is_match_key(value):
        raise ProtocolError(f"{name} must be a match key")  # the value may be nearly one
    return str(value)


def port(value: Any, name: str) -> int:
    """A TCP port. TVM's C++ and Java servers send it as a string of digits."""
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= 5:
        value = int(value)
    if type(value) is not int or not 0 <= value <= 65535:
        raise wrong(name, "a port", value)
    return value


def place(host: Check) -> Check:
    """``[host, port]``, kept as a tuple. ``host`` is the check of the host."""

    def check(value: Any, name: str) -> tuple[Any, int]:
        if type(value) not in (list, tuple) or len(value) != 2:
            raise wrong(name, "[host, port]", value)
        return host(value[0], name), port(value[1], name)

    return check


def optional(check: Check) -> Check:
    """A value that ``check`` allows, or null."""
    return lambda value, name: None if value is None else check(value, name)


def items(check: Check) -> Check:
    """A list of at most `MAX_ITEMS` values that ``check`` allows, kept as a tuple."""

    def check_all(value: Any, name: str) -> tuple[Any, ...]:
        if type(value) not in (list, tuple) or len(value) > MAX_ITEMS:
            raise wrong(name, f"a list of at most {MAX_ITEMS} entries", value)
        return tuple(check(item, name) for item in value)

    return check_all


def rows(check: Check) -> Check:
    """A list of values that ``check`` allows, kept as a list. Only the frame limits its length."""

    def check_all(value: Any, name: str) -> list[Any]:
        if type(value) not in (list, tuple):
            raise wrong(name, "a list", value)
        return [check(item, name) for item in value]

    return check_all


def mapping(check: Check, most: int = MAX_ITEMS) -> Check:
    """An object with at most ``most`` values that ``check`` allows."""

    def check_all(value: Any, name: str) -> dict[str, Any]:
        if type(value) is not dict or len(value) > most:
            raise wrong(name, f"an object of at most {most} entries", value)
        return {text(label, name): check(item, name) for label, item in value.items()}

    return check_all


def table(check: Check) -> Check:
    """An object with values that ``check`` allows. Only the frame limits its size."""

    def check_all(value: Any, name: str) -> dict[str, Any]:
        if type(value) is not dict or not all(type(label) is str for label in value):
            raise wrong(name, "an object", value)
        return {label: check(item, name) for label, item in value.items()}

    return check_all


def record(_required: bool = True, /, **fields: Check) -> Check:
    """An object with these fields. Further fields of a newer peer stay unchecked."""

    def check(value: Any, name: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong(name, "an object", value)
        for field, inner in fields.items():
            if field in value:
                value[field] = inner(value[field], field)
            elif _required:
                raise ProtocolError(f"{name} lacks {field!r}")
        return value

    return check


def partial(**fields: Check) -> Check:
    """An object with these fields, each of them optional. Further fields stay unchecked."""
    return record(False, **fields)


def anything(value: Any, name: str) -> Any:
    """Any JSON value."""
    return value


def field(check: Check, *, default: Any = dataclasses.MISSING) -> Any:
    """A field of a message; without ``default`` (None, a number, text, ``dict`` or ``tuple``) it is required."""
    metadata = {"check": check}
    if default in (dict, tuple):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Message:
    """A control message. Each subclass is a frozen dataclass; `field` makes its fields."""

    #: ``"op"`` on the wire; "" for answers and for messages inside others.
    op: ClassVar[str] = ""
    #: Each field's name, its check, and whether it is required.
    _fields: ClassVar[tuple[tuple[str, Check, bool], ...]] = ()

    def __init_subclass__(cls, op: str = "") -> None:
        cls.op = op
        missing = dataclasses.MISSING
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(dataclasses.dataclass(frozen=True)(cls))  # type: ignore[arg-type]
        cls._fields = tuple(
            (f.name, f.metadata["check"], f.default is missing and f.default_factory is missing) for f in fields
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this message; messages inside it become objects too."""
        plain: dict[str, Any] = {"op": self.op} if self.op else {}
        for name, _, _ in self._fields:
            plain[name] = _to_plain(getattr(self, name))
        return plain

    @classmethod
    def from_json(cls: type[AnyMessage], value: Any, name: str = "message") -> AnyMessage:  # noqa: PYI019 (Self needs 3.11)
        """The message in ``value``. Raises `ProtocolError` for a missing field, or a value that is not allowed."""
        if type(value) is not dict:
            raise wrong(name, "an object", value)
        kept = {}
        for field_name, check, required in cls._fields:
            if field_name in value:
                kept[field_name] = check(value[field_name], field_name)
            elif required:
                raise ProtocolError(f"{cls.op or name} lacks {field_name!r}")
        return cls(**kept)


def _to_plain(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_json()
    return [_to_plain(item) for item in value] if isinstance(value, tuple) else value
