"""The members of a lab, and the invitations to become one: ``lab.sqlite`` in the lab's folder.

The file has hashes of secrets only: who reads it can be nobody. Each change is one transaction on the disk when it
returns: a kill leaves the lab as before it or as after it. Times are seconds since 1970, by the tracker's clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpcsys.errors import ConfigError, Forbidden, Unauthorized
from rpcsys.tracker.access import is_name
from rpcsys.wire import keys, tokens
from rpcsys.wire.tokens import HolderKind, Token

FILE = "lab.sqlite"
INVITED_S = 86400.0  # how long an invitation may be used
USED_EVERY_S = 60.0  # the time of a member's last use is written no more often
_VERSION = 1
_BUSY_S = 5.0  # a command on the tracker's host may write at the same time
_TABLES = """
CREATE TABLE members (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, token TEXT NOT NULL UNIQUE, hash TEXT NOT NULL, next_hash TEXT,
    device_keys TEXT NOT NULL, groups TEXT NOT NULL, joined REAL NOT NULL, expires REAL, used REAL, revoked REAL
);
-- `lasts_s`: how long the member may stay. `taken`: the hash of the token that has used it up.
CREATE TABLE invitations (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, device_keys TEXT NOT NULL,
    groups TEXT NOT NULL, until REAL NOT NULL, lasts_s REAL, taken TEXT
);
"""
_USED_UP = "this invitation was used or is older than 24 h: ask for another (rpcsys lab invite NAME)"
_UNKNOWN = "this credential is revoked or has expired, or the tracker's data is another lab's: ask for an invitation"
_COLUMNS = "name, kind, token, hash, next_hash, device_keys, groups, joined, expires, used, revoked"


@dataclass(frozen=True)
class Member:
    """Who holds a token. ``keys``: those that a board may offer; ``expires``, ``used``, ``revoked``: None for never."""

    name: str
    kind: HolderKind
    token: str  # its ID
    hash: str
    next_hash: str | None  # of the token that replaces it once it was used
    keys: tuple[str, ...]
    groups: tuple[str, ...]
    joined: float
    expires: float | None
    used: float | None
    revoked: float | None

    def valid(self, now: float) -> bool:
        """Whether the member may still come in."""
        return self.revoked is None and (self.expires is None or now < self.expires)


class Members:
    """The open file, and its members by name. Not for two threads at once.

    Raises `ConfigError`: the folder is open to others, the file cannot be used, or a newer tracker wrote it.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE
        self.by_name: dict[str, Member] = {}
        self._by_token: dict[str, Member] = {}
        self._version = -1
        _check_rights(Path(folder))
        try:
            self._file = self._open()
            self.refresh()
        except sqlite3.Error as error:
            raise ConfigError(f"cannot use {self.path}: {error}") from None

    def _open(self) -> sqlite3.Connection:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        file = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            found = file.execute("PRAGMA user_version").fetchone()[0]
            if found > _VERSION:
                raise ConfigError(f"{self.path} was written by a newer rpcsys: upgrade this one")
            if not found:
                file.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
        except BaseException:
            file.close()
            raise
        return file

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def refresh(self) -> bool:
        """Read the members again if another process has changed the file; whether it has."""
        version = self._file.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return False
        self._version = version
        self._read()
        return True

    def _read(self) -> None:
        rows = self._file.execute(f"SELECT {_COLUMNS} FROM members ORDER BY name").fetchall()
        self.by_name = {row[0]: _member(row) for row in rows}
        self._by_token = {member.token: member for member in self.by_name.values()}

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction; at its end the members are read again. Raises ConfigError: the disk is full, say."""
        try:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield self._file
                self._file.execute("COMMIT")
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise ConfigError(f"cannot write {self.path}: {error}; nothing was changed") from None
        self._read()

    # Becoming a member

    def invite(
        self, name: str, kind: HolderKind, now: float, *, device_keys: Sequence[str] = (), groups: Sequence[str] = (),
        lasts_s: float | None = None,
    ) -> tuple[str, str]:  # fmt: skip
        """Invite one to be the member ``name``; return the invitation's ID and secret.

        ``lasts_s``: seconds until the membership expires. A later invitation of the same name replaces one that waits.
        Raises `ConfigError`: a name, key or group is invalid. Raises `Forbidden`: the name has a member.
        """
        if not is_name(name):
            raise ConfigError(f"{name!r} is no name for a member: letters, digits and ._@+-, at most 64")
        for group in groups:
            if not is_name(group):
                raise ConfigError(f"{group!r} is no name for a group: letters, digits and ._@+-, at most 64")
        for key in device_keys:
            if not keys.is_key(key):
                raise ConfigError(f"{key!r} is no device key")
        if name in self.by_name and self.by_name[name].valid(now):
            raise Forbidden(f"{name} is a member already: rpcsys lab renew {name}, or rpcsys lab revoke {name} first")
        invitation, secret = tokens.new_id(), tokens.new_secret()
        lists = map(json.dumps, (device_keys, groups))
        row = (invitation, tokens.hash_of(secret), name, kind.value, *lists, now + INVITED_S, lasts_s)
        with self._change() as file:
            file.execute("DELETE FROM invitations WHERE until <= ? OR (name = ? AND taken IS NULL)", (now, name))
            file.execute("INSERT INTO invitations VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", row)
        return invitation, secret

    def join(self, invitation: str, secret: str, digest: str, now: float) -> Member:
        """Use an invitation up: its member's token has the invitation's ID, and a secret whose hash is ``digest``.

        The same join, repeated after a broken connection, has the same result. Raises `Unauthorized`: the invitation is
        unknown, was used with another token, or is too old.
        """
        columns = "hash, until, taken, lasts_s, name, kind, device_keys, groups"
        with self._change() as file:
            row = file.execute(f"SELECT {columns} FROM invitations WHERE id = ?", (invitation,)).fetchone()
            if (
                row is None
                or not keys.same(row[0], tokens.hash_of(secret))
                or now >= row[1]
                or row[2] not in (None, digest)
            ):
                raise Unauthorized(_USED_UP)
            taken, lasts_s, name, kind, device_keys, groups = row[2:]
            if taken is None:
                expires = None if lasts_s is None else now + lasts_s
                values = (name, kind, invitation, digest, None, device_keys, groups, now, expires, None, None)
                file.execute("UPDATE invitations SET taken = ? WHERE id = ?", (digest, invitation))
                file.execute(f"INSERT OR REPLACE INTO members ({_COLUMNS}) VALUES ({','.join('?' * 11)})", values)
        return self._holder(invitation, HolderKind(kind), digest, now)

    # Members

    def authenticate(self, token: Token, now: float) -> Member:
        """The member who holds ``token``. Raises `Unauthorized`: nobody does, or it is revoked or has expired.

        The first use of a renewed token ends the old one.
        """
        return self._holder(token.id, token.kind, token.hash, now)

    def _holder(self, token: str, kind: HolderKind, digest: str, now: float) -> Member:
        member = self._by_token.get(token)
        if member is None or member.kind is not kind or not member.valid(now):
            raise Unauthorized(_UNKNOWN)
        if keys.same(member.hash, digest):
            return member
        if member.next_hash is None or not keys.same(member.next_hash, digest):
            raise Unauthorized(_UNKNOWN)
        with self._change() as file:
            file.execute("UPDATE members SET hash = next_hash, next_hash = NULL WHERE name = ?", (member.name,))
        return self.by_name[member.name]

    def used(self, name: str, now: float) -> None:
        """Note that a member came in, no more often than every `USED_EVERY_S`."""
        member = self.by_name.get(name)
        if member is not None and (member.used is None or now - member.used >= USED_EVERY_S):
            with self._change() as file:
                file.execute("UPDATE members SET used = ? WHERE name = ?", (now, name))

    def replace(self, name: str, digest: str) -> None:
        """Let in a member's new token, whose secret's hash is ``digest``; its first use ends the old one."""
        self._known(name)
        with self._change() as file:
            file.execute("UPDATE members SET next_hash = ? WHERE name = ?", (digest, name))

    def revoke(self, name: str, now: float) -> None:
        """End a membership, and an invitation of that name that waits. Raises `ConfigError`: nobody has the name."""
        waits = self._file.execute("SELECT 1 FROM invitations WHERE name = ? AND taken IS NULL", (name,)).fetchone()
        if waits is None:
            self._known(name)
        with self._change() as file:
            file.execute(
                "UPDATE members SET revoked = ?, next_hash = NULL WHERE name = ? AND revoked IS NULL", (now, name)
            )
            file.execute("DELETE FROM invitations WHERE name = ?", (name,))

    def _known(self, name: str) -> Member:
        if name not in self.by_name:
            raise ConfigError(f"the lab has no member {name}: rpcsys lab members lists them")
        return self.by_name[name]


def _member(row: tuple[Any, ...]) -> Member:
    name, kind, token, digest, next_digest, device_keys, groups, *times = row
    own_keys, own_groups = tuple(json.loads(device_keys)), tuple(json.loads(groups))
    return Member(name, HolderKind(kind), token, digest, next_digest, own_keys, own_groups, *times)


def _check_rights(folder: Path) -> None:
    """Raises ConfigError: the folder does not exist, or others may read it."""
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"cannot use the lab's folder {folder}: {error.strerror}; rpcsys lab init makes one"
        ) from None
    if mode & 0o077:
        raise ConfigError(f"others may read the lab's folder {folder}: type chmod 700 {folder}")
