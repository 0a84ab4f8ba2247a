"""What a device's answers must hold, checked before anybody uses them: as `rpcsys.client.answers` for a tracker's."""

from __future__ import annotations

from typing import Any, Dict, Union

from rpcsys.errors import ProtocolError
from rpcsys.wire import checks
from rpcsys.wire.checks import Check, integer, number, optional, partial, record, rows, sentence

_MOST = 1 << 63
_count = integer(0, _MOST)
_room = integer(1, _MOST)


def _extent(value: Any, name: str) -> Union[int, str, None]:
    """Of a shape: a size, or a name or nothing where it is free."""
    return sentence(value, name) if type(value) is str else optional(_count)(value, name)


def _argument(value: Any, name: str) -> Dict[str, Any]:
    """An input or an output: its name; dtype and shape where they are known."""
    kept: Dict[str, Any] = record(name=sentence)(value, name)
    return partial(dtype=optional(sentence), shape=optional(rows(_extent)))(kept, name)  # type: ignore[no-any-return]


_module = {
    "kind": sentence,
    "functions": rows(sentence),
    "inputs": optional(rows(_argument)),
    "outputs": optional(rows(_argument)),
}
MODULE = partial(**_module)
ARRAY = partial(dtype=sentence, shape=rows(_count))
FUNCTION = partial(name=sentence)
HELLO = partial(
    key=sentence,
    limit_s=optional(number),
    capabilities=partial(loads=rows(sentence), kinds=rows(sentence), encodings=rows(sentence)),
    machine=partial(arch=sentence, system=sentence, host=sentence),
    window=partial(calls=_room, bytes=_room),
    serve=partial(name=sentence, version=sentence, **_module),
)
MEMORY = record(objects=_count, bytes=_count, kept=rows(partial()))
NAME = sentence
NAMES = rows(sentence)
TIMES = record(results=rows(number))
RUN = checks.table(checks.anything)


def checked(check: Check, value: Any, name: str) -> Any:
    """``value``, if ``check`` allows it. Raises `ProtocolError`, one sentence."""
    try:
        return check(value, name)
    except ProtocolError as error:
        raise ProtocolError(f"what the device says of {name} makes no sense: {error}") from None


def handle(value: Any, kind: type, name: str) -> Any:
    """``value``, if it stands for an object of this kind on the device. Raises `ProtocolError`."""
    if not isinstance(value, kind):
        raise ProtocolError(f"what the device says of {name} makes no sense: it gives no such object")
    return value
