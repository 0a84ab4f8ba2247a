"""Pinned match keys: those of encrypted sessions.

A **pinned match key** is ``KEY:t1-PIN-SECRET``: its session is encrypted, PIN is that of the session's certificate, and
SECRET the right to it. Without ``-SECRET`` it is the session's **public name**, which may be said in the clear.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

#: What a secret behind the pin of a server's deployed modules is for.
SERVE, DEPLOY = "serve", "deploy"
_PINNED = re.compile(r"(?P<key>.+):t1-(?P<pin>[0-9a-f]{64})(?:-(?P<secret>[0-9a-f]{32}))?", re.DOTALL).fullmatch

_PIN = re.compile("[0-9a-f]{64}").fullmatch
_SECRET = re.compile("[0-9a-f]{32}").fullmatch


class PinnedMatchKey(NamedTuple):
    """The parts of a pinned match key; of a public name if ``secret`` is empty."""

    key: str
    pin: str
    secret: str

    @property
    def name(self) -> str:
        """Its public name."""
        return f"{self.key}:t1-{self.pin}"

    @property
    def text(self) -> str:
        """The match key itself."""
        return f"{self.name}-{self.secret}" if self.secret else self.name


def new(key: str, pin: str) -> PinnedMatchKey:
    """A fresh pinned match key for ``key``: its secret is 128 bits from the operating system."""
    return PinnedMatchKey(key, pin, os.urandom(16).hex())


def is_pin(text: object) -> bool:
    """Whether ``text`` has the form of a pin."""
    return isinstance(text, str) and _PIN(text) is not None


def is_secret(text: object) -> bool:
    """Whether ``text`` has the form of a secret."""
    return isinstance(text, str) and _SECRET(text) is not None


def parse(match_key: str) -> PinnedMatchKey | None:
    """The parts of a pinned match key or public name; None for any other match key."""
    found = _PINNED(match_key)
    return PinnedMatchKey(found["key"], found["pin"], found["secret"] or "") if found else None


def public_name(match_key: str) -> str:
    """What of a match key may be said in the clear: of a pinned one its public name, any other whole."""
    parts = parse(match_key)
    return match_key if parts is None else parts.name


def shown(match_key: str) -> str:
    """A match key for people and logs: without what would give the right to its session."""
    key, pinned, rest = match_key.partition(":t1-")  # also of one that was pasted twice, or has more behind it
    if pinned:
        return f"{key}:t1-{rest[:4]}…"
    key, colon, _ = match_key.rpartition(":")
    return f"{key}:…" if colon else match_key
