"""What a server can be measured by, in Prometheus's text format (written by hand: a board has no package for it)."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

#: Where the buckets of the histogram of sessions end.
SECONDS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """Counts of what happened. ``now`` gives what is so now, by name, when somebody asks."""

    def __init__(self, key: str, now: Callable[[], Mapping[str, float]]) -> None:
        self._key = key
        self._now = now
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._faults = 0
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def ended(self, outcome: str, lasted_s: float, fault: str) -> None:
        self._outcomes[outcome] += 1
        self._faults += bool(fault)
        self._counts[sum(lasted_s > bound for bound in SECONDS)] += 1
        self._sum += lasted_s

    def page(self) -> tuple[str, bytes]:
        """All metrics: their content type, and the text."""
        key = {"key": self._key}
        lines: list[str] = []
        for name, value in self._now().items():
            lines += _family(f"rpcsys_server_{name}", "gauge", [("", key, value)])
        outcomes = [("", {**key, "outcome": word}, count) for word, count in sorted(self._outcomes.items())]
        lines += _family("rpcsys_server_sessions_total", "counter", outcomes)
        lines += _family("rpcsys_server_faults_total", "counter", [("", key, self._faults)])
        lines += _family("rpcsys_server_session_seconds", "histogram", self._histogram(key))
        return TYPE, "".join(line + "\n" for line in lines).encode()

    def _histogram(self, key: dict[str, str]) -> Iterable[tuple[str, dict[str, str], float]]:
        below = 0
        for bound, count in zip([*map(str, SECONDS), "+Inf"], self._counts):
            below += count
            yield "_bucket", {**key, "le": bound}, below
        yield "_sum", key, self._sum
        yield "_count", key, below


def _family(name: str, kind: str, samples: Iterable[tuple[str, Mapping[str, str], Any]]) -> Sequence[str]:
    return [f"# TYPE {name} {kind}", *(f"{name}{end}{_labels(labels)} {value}" for end, labels, value in samples)]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
