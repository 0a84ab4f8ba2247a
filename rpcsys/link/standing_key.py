"""The file of a standing key: the pinned match key of a server without a tracker, and the server's private key.

Its first line is the match key, which clients need; a client's file may have that line alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import NamedTuple

from rpcsys.errors import ConfigError
from rpcsys.link import identity
from rpcsys.link.identity import Identity
from rpcsys.wire import pinned_keys
from rpcsys.wire.pinned_keys import PinnedMatchKey

_MAX_BYTES = 16 << 10


class StandingKey(NamedTuple):
    """What clients say, and what the server proves itself by."""

    match_key: PinnedMatchKey
    own: Identity

    def text(self) -> str:
        """Its file's content."""
        return f"{self.match_key.text}\n{self.own.pem()}"


def read_or_make(path: str, key: str) -> StandingKey:
    """The standing key of a server of ``key``; the file is made if there is none. Raises `ConfigError`."""
    try:
        if not os.path.lexists(path):
            _make(path, key)
        text = _read(path)
    except OSError as error:
        raise ConfigError(f"--standing-key {path}: {error.strerror}") from None
    found = StandingKey(_match_key(text, path), identity.parse(text, path))
    if found.match_key.pin != found.own.pin:
        raise ConfigError(f"--standing-key {path} was changed: its two keys do not belong together; restore it")
    if found.match_key.key != key:
        raise ConfigError(f"--standing-key {path} is of {found.match_key.key}, and this server is {key}: give --key")
    return found


def match_key(path: str) -> str:
    """The match key in a file, for a client. Raises `ConfigError`."""
    try:
        return _match_key(_read(path), path).text
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror}") from None


def _match_key(text: str, path: str) -> PinnedMatchKey:
    found = pinned_keys.parse(text.partition("\n")[0].strip())
    if found is None or not found.secret:
        raise ConfigError(f"{path} holds no whole key of a server (KEY:t1-…): copy it again")
    return found


def _read(path: str) -> str:
    with open(path, "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise ConfigError(f"others may read the key {path}: type chmod 600 {path}")
        return file.read(_MAX_BYTES).decode("utf-8", "replace")


def _make(path: str, key: str) -> None:
    """Make the file, whole or not at all; one that another server makes meanwhile stays. Raises OSError."""
    own = identity.new()
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(StandingKey(pinned_keys.new(key, own.pin), own).text())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
