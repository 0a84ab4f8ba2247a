"""The facts of devices, and the wants of requests.

A device's facts are pairs of label and value; a label may have several values (``loads``, ``device``). A request wants
exact pairs, and compares other labels (``{"cores": ">=4", "onnxruntime": ">=1.22,<2"}``).

Two values compare as numbers if both are plain numbers, else as versions if both are versions with the same word
before them, else as texts, which are only equal or not. The labels in `VERSIONS` are never plain numbers: 1.9 < 1.22.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from rpcsys.tracker.versions import ParsedVersion, numbers_in, parse
from rpcsys.wire.labels import MAX_WANTED, VERSIONS, operator_of, shown

Pair = tuple[str, str]
#: Labels with a meaning here. The tracker sets the first three, the server sets ``name``.
KEY, SERVER, LOADS, DEVICE, NAME = "key", "server", "loads", "device", "name"
_SEVERAL = (LOADS, DEVICE)  # these have several values
#: A fact of each of our devices, under which a request stands that only compares. No client can name an empty label.
ANY = ("", "any device")
_EQUAL, _NOT = "=", "!="
_SERIES = ".*"  # behind a wanted version: 3.11.* is any 3.11
_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, _EQUAL: operator.eq, _NOT: operator.ne, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip


class LabelValue(NamedTuple):
    """A label's value, read in each way that it can be compared."""

    text: str
    number: float | None
    version: ParsedVersion | None

    def order(self, wanted: LabelValue) -> float | None:
        """Below 0 if it is lower than ``wanted``, 0 if equal, else above 0; None for texts, which have no order."""
        if self.number is not None and wanted.number is not None:
            return self.number - wanted.number
        if self.version is not None and wanted.version is not None and self.version.word == wanted.version.word:
            return self.version.order(wanted.version)
        return None


@lru_cache(maxsize=4096)
def value_of(label: str, text: str) -> LabelValue:
    """A label's value from its text."""
    return LabelValue(text, None if label in VERSIONS else _number(text), parse(text))


@dataclass(frozen=True, slots=True)
class LabelComparison:
    """A comparison of a device's label with a value."""

    label: str
    operator: str
    text: str
    _value: LabelValue = field(init=False, compare=False, repr=False)
    _series: int = field(init=False, compare=False, repr=False)  # numbers of a wanted series, 0 for one version

    def __post_init__(self) -> None:
        """Raises `ValueError`, with a sentence for the client."""
        text, series = self.text, 0
        if self.operator in (_EQUAL, _NOT) and text.endswith(_SERIES) and parse(text[: -len(_SERIES)]):
            text = text[: -len(_SERIES)]
            series = numbers_in(text)
        value = value_of(self.label, text)
        if self.operator not in (_EQUAL, _NOT) and value.number is None and value.version is None:
            raise ValueError(f"the label {self.label} wants {str(self)!r}, which is no number and no version")
        object.__setattr__(self, "_value", value)
        object.__setattr__(self, "_series", series)

    def fits(self, values: Mapping[str, LabelValue]) -> bool:
        """Whether a device with these values fits. One without the label does not, even with ``!=``."""
        has = values.get(self.label)
        if has is None:
            return False
        if self._series:
            ours, theirs = has.version, self._value.version
            assert theirs is not None, "checked above"
            fits = ours is not None and ours.word == theirs.word and ours.is_in(theirs, self._series)
            return fits == (self.operator == _EQUAL)
        order = has.order(self._value)
        if order is None:
            equal = has.text == self._value.text
            return equal if self.operator == _EQUAL else self.operator == _NOT and not equal
        return _HOLDS[self.operator](order, 0)

    def __str__(self) -> str:
        return self.operator + self.text


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The facts of a device, and the values of its labels for comparisons."""

    pairs: frozenset[Pair]
    values: Mapping[str, LabelValue] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Wants:
    """The wants of a request. ``bare``: a key without labels; ``characters``: the length of all texts."""

    key: str
    exact: frozenset[Pair]
    compared: tuple[LabelComparison, ...] = ()
    bare: bool = field(default=False, compare=False)
    characters: int = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        texts = sum(len(label) + len(value) for label, value in self.exact)
        texts += len(self.key) + sum(len(each.label) + len(each.text) for each in self.compared)
        object.__setattr__(self, "characters", texts)
        object.__setattr__(self, "_hash", hash((self.key, self.exact, self.compared)))

    def __hash__(self) -> int:  # used ten times for each request that waits
        return self._hash

    def fit(self, facts: DeviceFacts) -> bool:
        """Whether a device with these facts is wanted."""
        return self.exact <= facts.pairs and all(each.fits(facts.values) for each in self.compared)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the request, as its client sent them."""
        texts = {label: value for label, value in self.exact if (label, value) not in (ANY, (KEY, self.key))}
        for each in self.compared:
            texts[each.label] = f"{texts[each.label]},{each}" if each.label in texts else str(each)
        return dict(sorted(texts.items()))

    def __str__(self) -> str:
        labels = ", ".join(shown(label, value) for label, value in self.labels.items())
        return " with ".join(filter(None, (repr(self.key) if self.key else "any device", labels)))


@lru_cache(maxsize=4096)
def facts_of_key(key: str) -> DeviceFacts:
    """The facts of a TVM server's device."""
    return DeviceFacts(frozenset([(KEY, key)]))


def facts_of(
    key: str, server: str, labels: Mapping[str, str], loads: tuple[str, ...], devices: tuple[str, ...] = ()
) -> DeviceFacts:
    """The facts of one of our servers' devices. Versions are no pairs, since they are always compared."""
    texts = {**labels, KEY: key, SERVER: server}
    pairs = {(label, text) for label, text in texts.items() if label not in VERSIONS}
    pairs |= {ANY, *((LOADS, ending) for ending in loads)}
    pairs |= {(DEVICE, text) for name in devices for text in (name, name.partition(":")[0], name.partition(".")[0])}
    return DeviceFacts(frozenset(pairs), {label: value_of(label, text) for label, text in texts.items()})


@lru_cache(maxsize=4096)
def wants_of_key(key: str) -> Wants:
    """The wants of a request for a key alone."""
    return Wants(key, frozenset([(KEY, key)]), (), bare=True)


def wants_of(key: str, labels: Mapping[str, str]) -> Wants:
    """The wants of a request for a key ("" for any) and labels. Raises `ValueError`, with a sentence for the client."""
    if not labels and key:
        return wants_of_key(key)
    exact = {(KEY, key)} if key else set()
    compared: list[LabelComparison] = []
    for label, text in sorted(labels.items()):
        if not label:
            raise ValueError(f"a label without a name wants {text!r}")
        sign, value = operator_of(text)
        if label in _SEVERAL and sign not in ("", "=", "=="):
            raise ValueError(f"the label {label} has several values: a request can want one of them, not compare them")
        if label in _SEVERAL or (not sign and label not in VERSIONS):
            exact.add((label, value))
        else:
            compared += _comparisons(label, text)
    if not exact and not compared:
        raise ValueError("a request names a key, or at least one label with the value it must have")
    if len(compared) > MAX_WANTED:
        raise ValueError(f"more than {MAX_WANTED} comparisons of labels")
    return Wants(key, frozenset(exact or [ANY]), tuple(compared))


def _comparisons(label: str, text: str) -> list[LabelComparison]:
    """The comparisons of a wanted value, such as ``>=1.22,<2``. A value without an operator is the wanted one."""
    found, parts = [], text.split(",")
    for part in parts:
        sign, value = operator_of(part.strip())
        if operator_of(value)[0] or not (sign or len(parts) == 1):
            raise ValueError(f"the label {label} wants {text!r}: write comparisons like '>=1.22' or '>=1.22,<2'")
        found.append(LabelComparison(label, sign if sign not in ("", "==") else _EQUAL, value))
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e300 else None
