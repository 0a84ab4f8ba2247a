"""Versions, parsed for comparison: of Python packages (PEP 440), and of kernels, drivers and C libraries."""

from __future__ import annotations

import re
from typing import NamedTuple

_MAX_TEXT = 64  # characters: a longer text is no version, and the parts of all versions take little memory
_VERSION = re.compile(
    r"""(?:(?P<word>[a-z]+)[-_ ]?)?
        (?:(?P<epoch>[0-9]+)!)?
        (?P<release>[0-9]+(?:\.[0-9]+)*)
        (?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|c|rc)(?![a-z])[-_.]?(?P<pre_number>[0-9]*))?
        (?:-(?P<build>[0-9]+)(?![0-9a-z])|[-_.]?(?P<post>post|rev|r)(?![a-z])[-_.]?(?P<post_number>[0-9]*))?
        (?:[-_.]?(?P<dev>dev)(?![a-z])[-_.]?(?P<dev_number>[0-9]*))?
        (?P<rest>.*)""",
    re.VERBOSE | re.DOTALL,
)
_PART = re.compile("[0-9]+|[a-z]+")
_PRE = {"a": 1, "b": 2}  # a release candidate, by any name, is 3, and a release 4


class ParsedVersion(NamedTuple):
    """A version; a lower one is earlier. ``release`` has no zeros at its end.

    ``word`` stands before the numbers (``musl-1.2.5``), ``rest`` behind what PEP 440 knows (``+cu118``, ``-amd64``).
    """

    word: str
    epoch: int
    release: tuple[int, ...]
    stage: tuple[int, ...]
    rest: tuple[tuple[int, int, str], ...]

    def order(self, other: ParsedVersion) -> int:
        """Below 0 if this version is earlier than ``other``, 0 if it is the same, else above 0.

        The ``rest`` counts only where ``other`` has one: 6.1.0-13-amd64 is 6.1.0-13.
        """
        ours, theirs = (self, other) if other.rest else (self._replace(rest=()), other)
        return (ours > theirs) - (ours < theirs)

    def is_in(self, series: ParsedVersion, length: int) -> bool:
        """Whether the first ``length`` numbers are those of ``series``, as 3.11.2 is in 3.11."""
        ours, theirs = (each.release + (0,) * length for each in (self, series))
        return self.epoch == series.epoch and ours[:length] == theirs[:length]


def parse(text: str) -> ParsedVersion | None:
    """The version that a text is, None if it is none. Never raises."""
    match = _VERSION.fullmatch(text.strip().lower()) if len(text) <= _MAX_TEXT else None
    if match is None:
        return None
    word = match["word"] or ""
    release = tuple(map(int, match["release"].split(".")))
    while len(release) > 1 and not release[-1]:
        release = release[:-1]
    return ParsedVersion(
        "" if word == "v" else word, int(match["epoch"] or 0), release, _stage(match), _rest(match["rest"])
    )


def numbers_in(text: str) -> int:
    """How many numbers a version's text has before all else: 2 of ``3.11``."""
    match = _VERSION.fullmatch(text.strip().lower())
    return match["release"].count(".") + 1 if match else 0


def _stage(match: re.Match[str]) -> tuple[int, ...]:
    """What follows a release, so that these are in order: 1.dev0, 1a1, 1rc1, 1, 1.post1.dev0, 1.post1."""
    post = match["build"] if match["post"] is None else match["post_number"] or "0"
    pre = 4, 0
    if match["pre"]:
        pre = _PRE.get(match["pre"][0], 3), int(match["pre_number"] or 0)
    elif match["dev"] and post is None:
        pre = 0, 0
    return (*pre, -1 if post is None else int(post), not match["dev"], int(match["dev_number"] or 0))


def _rest(text: str) -> tuple[tuple[int, int, str], ...]:
    parts = _PART.findall(text)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
