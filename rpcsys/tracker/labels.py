"""The facts of devices, and the wants of requests.

A device's facts are pairs of label and value; a label may have several values (``loads``). A request wants exact pairs,
and for some labels a least number (``{"cores": ">=4"}``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

Pair = tuple[str, str]
#: Labels with a meaning here. The tracker sets the first three, the server sets ``name``.
KEY, SERVER, LOADS, NAME = "key", "server", "loads", "name"
_AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The facts of a device, and the values of its labels that are numbers."""

    pairs: frozenset[Pair]
    numbers: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Wants:
    """The wants of a request. ``bare``: a key without labels; ``characters``: the length of all texts."""

    key: str
    exact: frozenset[Pair]
    at_least: tuple[tuple[str, float], ...] = ()
    bare: bool = field(default=False, compare=False)
    characters: int = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        texts = sum(len(label) + len(value) for label, value in self.exact)
        texts += len(self.key) + sum(len(label) for label, _ in self.at_least)
        object.__setattr__(self, "characters", texts)
        object.__setattr__(self, "_hash", hash((self.key, self.exact, self.at_least)))

    def __hash__(self) -> int:  # used ten times for each request that waits
        return self._hash

    def fit(self, facts: DeviceFacts) -> bool:
        """Whether a device with these facts is wanted."""
        return self.exact <= facts.pairs and all(
            facts.numbers.get(label, float("-inf")) >= least for label, least in self.at_least
        )

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the request, as its client sent them."""
        exact = {label: value for label, value in self.exact if (label, value) != (KEY, self.key)}
        least = {label: f"{_AT_LEAST}{number:g}" for label, number in self.at_least}
        return dict(sorted({**exact, **least}.items()))

    def __str__(self) -> str:
        labels = ", ".join(f"{label}={value}" for label, value in self.labels.items())
        return " with ".join(filter(None, (repr(self.key) if self.key else "any device", labels)))


@lru_cache(maxsize=4096)
def facts_of_key(key: str) -> DeviceFacts:
    """The facts of a TVM server's device."""
    return DeviceFacts(frozenset([(KEY, key)]))


def facts_of(key: str, server: str, labels: Mapping[str, str], loads: tuple[str, ...]) -> DeviceFacts:
    """The facts of one of our servers' devices."""
    pairs = {(label, value) for label, value in labels.items() if label not in (KEY, SERVER)}
    pairs |= {(KEY, key), (SERVER, server), *((LOADS, ending) for ending in loads)}
    numbers = {label: number for label, value in labels.items() if (number := _number(value)) is not None}
    return DeviceFacts(frozenset(pairs), numbers)


@lru_cache(maxsize=4096)
def wants_of_key(key: str) -> Wants:
    """The wants of a request for a key alone."""
    return Wants(key, frozenset([(KEY, key)]), (), bare=True)


def wants_of(key: str, labels: Mapping[str, str]) -> Wants:
    """The wants of a request for a key ("" for any) and labels. Raises `ValueError`, with a sentence for the client."""
    if not labels and key:
        return wants_of_key(key)
    exact = {(KEY, key)} if key else set()
    least = []
    for label, value in sorted(labels.items()):
        if not value.startswith(_AT_LEAST):
            exact.add((label, value))
            continue
        number = _number(value[len(_AT_LEAST) :])
        if number is None:
            raise ValueError(f"the label {label} wants {value!r}, which is no number")
        least.append((label, number))
    if not exact:
        raise ValueError("a request names a key, or at least one label with the value it must have")
    return Wants(key, frozenset(exact), tuple(least))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e300 else None
