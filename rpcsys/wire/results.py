"""Messages about the results of an auto-tuner's measurements, which a tracker keeps for all (docs/wire.md)."""

from __future__ import annotations

import math
import re
from typing import Any

from rpcsys.wire import checks
from rpcsys.wire.checks import field
from rpcsys.wire.control import Ask

#: The capability of a tracker that keeps results.
RESULTS = "results"
#: Results in one message, and times in each: as JSON, a time takes 25 bytes at most, and an identity 67. So a question
#: and an answer with the most of both take 830 kB; a frame holds 1 MiB.
MAX_RESULTS, MAX_TIMES = 128, 256
_IDENTITY = re.compile("[0-9a-f]{64}").fullmatch


def identity(value: Any, name: str) -> str:
    """What identifies a measurement: a SHA-256 of all that it depends on."""
    if type(value) is not str or _IDENTITY(value) is None:
        raise checks.wrong(name, "64 hexadecimal digits", value)
    return value


def times(value: Any, name: str) -> list[float]:
    """The times of one candidate, in seconds: some, but at most `MAX_TIMES`."""
    if type(value) is not list or not 0 < len(value) <= MAX_TIMES:
        raise checks.wrong(name, f"a list of 1 to {MAX_TIMES} times", value)
    return [_time(item, name) for item in value]


def can_be_kept(seconds: list[float]) -> bool:
    """Whether a tracker would take these times."""
    return 0 < len(seconds) <= MAX_TIMES and all(0 < each <= checks.MAX_SECONDS for each in seconds)


def _time(value: Any, name: str) -> float:
    found = checks.number(value, name)
    if not 0 < found <= checks.MAX_SECONDS or not math.isfinite(found):
        raise checks.wrong(name, "a time above 0 s", value)
    return float(found)


def _some(check: checks.Check) -> checks.Check:
    def check_all(value: Any, name: str) -> tuple[Any, ...]:
        if type(value) is not list or not 0 < len(value) <= MAX_RESULTS:
            raise checks.wrong(name, f"a list of 1 to {MAX_RESULTS} entries", value)
        return tuple(check(item, name) for item in value)

    return check_all


def _results(value: Any, name: str) -> dict[str, list[float]]:
    if type(value) is not dict or len(value) > MAX_RESULTS:
        raise checks.wrong(name, f"an object of at most {MAX_RESULTS} entries", value)
    return {identity(each, name): times(seconds, name) for each, seconds in value.items()}


class FindResults(Ask, op="find_results"):
    """Which of ``identities`` have results. Answer: ``found``, the seconds of those, by identity."""

    identities: tuple[str, ...] = field(_some(identity))


class KeepResults(Ask, op="keep_results"):
    """Keep ``results``, the seconds by identity, in place of earlier ones."""

    results: dict[str, list[float]] = field(_results)


#: The check of the answer to `FindResults`.
found = _results
MESSAGES = (FindResults, KeepResults)
