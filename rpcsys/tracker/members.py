"""The members of a lab, and the invitations to become one: ``lab.sqlite`` in the lab's folder.

The file has hashes of secrets only: who reads it can be nobody. Each change is one transaction on the disk when it
returns: a kill leaves the lab as before it or as after it. Times are seconds since 1970, by the tracker's clock.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rpcsys.errors import ConfigError, Forbidden, Unauthorized
from rpcsys.tracker.access import is_name
from rpcsys.tracker.batch import transaction
from rpcsys.tracker.lab_view import Member
from rpcsys.wire import keys, tokens
from rpcsys.wire.tokens import HolderKind, Token

FILE = "lab.sqlite"
INVITED_S = 86400.0  # how long an invitation may be used
USED_EVERY_S = 60.0  # the time of a member's last use is written no more often
_BUSY_S = 5.0  # a command on the tracker's host may write at the same time
#: What makes each version of the file out of the one before it.
_VERSIONS = (
    (
        """CREATE TABLE members (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, token TEXT NOT NULL UNIQUE, hash TEXT NOT NULL, next_hash TEXT,
    device_keys TEXT NOT NULL, groups TEXT NOT NULL, joined REAL NOT NULL, expires REAL, used REAL, revoked REAL
)""",
        # `lasts_s`: how long the member may stay. `taken`: the hash of the token that has used it up.
        """CREATE TABLE invitations (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, device_keys TEXT NOT NULL,
    groups TEXT NOT NULL, until REAL NOT NULL, lasts_s REAL, taken TEXT
)""",
    ),
    ("ALTER TABLE members ADD COLUMN renew INTEGER NOT NULL DEFAULT 0",),
    ("ALTER TABLE members ADD COLUMN subject TEXT",),
)
_USED_UP = "this invitation was used or is older than 24 h: ask for another (rpcsys lab invite NAME)"
_UNKNOWN = "this credential is revoked or has expired, or the tracker's data is another lab's: ask for an invitation"
_COLUMNS = "name, kind, token, hash, next_hash, device_keys, groups, joined, expires, used, revoked, renew, subject"


@dataclass(frozen=True)
class Invited:
    """An invitation that waits, until the time ``until``; fields as those of :class:`Member`."""

    name: str
    kind: HolderKind
    keys: tuple[str, ...]
    groups: tuple[str, ...]
    until: float


class Members:
    """The open file, and its members by name. One thread changes it; others may read ``by_name``, which is replaced.

    ``noted_from``: a member's first use after that time is written at once. Raises `ConfigError`: the folder is open to
    others, the file cannot be used, or a newer tracker wrote it.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE
        self.by_name: dict[str, Member] = {}
        self.noted_from = 0.0
        self._by_token: dict[str, Member] = {}
        self._version = -1
        check_rights(Path(folder))
        try:
            self._file = self._open()
            self.refresh()
        except sqlite3.Error as error:
            raise ConfigError(f"cannot use {self.path}: {error}; restore it from a copy of the folder") from None
        except OSError as error:
            raise ConfigError(
                f"cannot write {self.path}: {error.strerror}; the tracker needs it on a disk that it may write"
            ) from None

    def _open(self) -> sqlite3.Connection:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        file = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            if _version(file) > len(_VERSIONS):
                raise ConfigError(f"{self.path} was written by a newer rpcsys: upgrade this one")
            if _version(file) < len(_VERSIONS):
                file.execute("BEGIN IMMEDIATE")
                for statement in itertools.chain(*_VERSIONS[_version(file) :]):
                    file.execute(statement)
                file.execute(f"PRAGMA user_version = {len(_VERSIONS)}")
                file.execute("COMMIT")
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
            with transaction(self._file) as file:
                yield file
        except sqlite3.Error as error:
            raise ConfigError(f"cannot write {self.path}: {error}; nothing was changed") from None
        self._read()

    # Becoming a member

    def invite(
        self, name: str, kind: HolderKind, now: float, *, device_keys: Sequence[str] = (), groups: Sequence[str] = (),
        lasts_s: float | None = None, again: bool = False,
    ) -> tuple[str, str]:  # fmt: skip
        """Invite one to be the member ``name``; return the invitation's ID and secret.

        ``lasts_s``: seconds until the membership expires; ``again``: replace an invitation that waits. Raises
        `ConfigError`: a name, key or group is invalid. Raises `Forbidden`: the name has a member, or an invitation.
        """
        self._check(name, device_keys, groups, now)
        self._check_invited(name, kind, now, again)
        invitation, secret = tokens.new_id(), tokens.new_secret()
        lists = map(json.dumps, (device_keys, groups))
        row = (invitation, tokens.hash_of(secret), name, kind.value, *lists, now + INVITED_S, lasts_s)
        with self._change() as file:
            file.execute("DELETE FROM invitations WHERE until <= ? OR (name = ? AND taken IS NULL)", (now, name))
            file.execute("INSERT INTO invitations VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", row)
        return invitation, secret

    def enrol(
        self, name: str, kind: HolderKind, digest: str, now: float, *, device_keys: Sequence[str] = (),
        groups: Sequence[str] = (), again: bool = False,
    ) -> Member:  # fmt: skip
        """Make ``name`` a member at once, with a new token whose secret's hash is ``digest``.

        The same enrolment, repeated after a broken connection, has the same result. ``again``, and errors: as those of
        :meth:`invite`.
        """
        known = self.by_name.get(name)
        if known is not None and known.valid(now) and known.kind is kind and keys.same(known.hash, digest):
            return known
        self._check(name, device_keys, groups, now)
        self._check_invited(name, kind, now, again)
        lists = map(json.dumps, (device_keys, groups))
        with self._change() as file:
            file.execute("DELETE FROM invitations WHERE name = ?", (name,))
            _add(file, name, kind.value, tokens.new_id(), digest, None, *lists, now, None, None, None, 0, None)
        return self.by_name[name]

    def _check(self, name: str, device_keys: Sequence[str], groups: Sequence[str], now: float) -> None:
        """Raises `ConfigError`: a name, key or group is invalid. Raises `Forbidden`: the name has a member."""
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

    def _check_invited(self, name: str, kind: HolderKind, now: float, again: bool) -> None:
        """Raises `Forbidden`: an invitation of that name waits, and is not to be replaced, or is for another kind.

        Who may enrol boards could end people's invitations otherwise.
        """
        waiting = next((one for one in self.invited(now) if one.name == name), None)
        if waiting is None or (again and waiting.kind is kind):
            return
        minutes = max(0, round((now - waiting.until + INVITED_S) / 60))
        how = "--again replaces it" if waiting.kind is kind else f"rpcsys lab revoke {name} ends it"
        raise Forbidden(f"{name} has an invitation since {minutes} min, and has not used it yet: {how}")

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
                file.execute("UPDATE invitations SET taken = ? WHERE id = ?", (digest, invitation))
                _add(file, name, kind, invitation, digest, None, device_keys, groups, now, expires, None, None, 0, None)
        return self._holder(invitation, HolderKind(kind), digest, now)

    def sign_in(
        self, name: str, subject: str, digest: str, now: float, *, groups: Sequence[str], lasts_s: float
    ) -> Member:
        """Make whom an issuer calls ``subject`` the member ``name`` for ``lasts_s`` seconds, with a new token.

        One who is that member still has the token beside the one from before, until its first use. The same again has
        the same result. Raises `Forbidden`: the name is that of a member whom a keeper has let in, invited or revoked,
        or of somebody else. Raises `ConfigError`: it is no name for a member.
        """
        known = self.by_name.get(name)
        if known is not None and (known.subject != subject or known.revoked is not None):
            why = "was revoked" if known.subject == subject else "is a member that this sign-in is not for"
            raise Forbidden(f"{name} {why}: ask a keeper for an invitation, then type: rpcsys login")
        if any(one.name == name for one in self.invited(now)):
            raise Forbidden(f"{name} is invited: use the invitation, and type rpcsys login without more")
        lists, until = (json.dumps(()), json.dumps(groups)), now + lasts_s
        with self._change() as file:
            if known is None or not known.valid(now):
                self._check(name, (), groups, now)
                person = HolderKind.PERSON.value
                _add(file, name, person, tokens.new_id(), digest, None, *lists, now, until, None, None, 0, subject)
            elif digest != known.hash:
                changed = "groups = ?, expires = ?, next_hash = ?, renew = 0"
                file.execute(f"UPDATE members SET {changed} WHERE name = ?", (lists[1], until, digest, name))
        return self.by_name[name]

    def invited(self, now: float) -> list[Invited]:
        """The invitations that wait, by name."""
        columns = "name, kind, device_keys, groups, until"
        rows = self._file.execute(
            f"SELECT {columns} FROM invitations WHERE taken IS NULL AND until > ? ORDER BY name", (now,)
        )
        return [
            Invited(name, HolderKind(kind), tuple(json.loads(device_keys)), tuple(json.loads(groups)), until)
            for name, kind, device_keys, groups, until in rows.fetchall()
        ]

    # Members

    def authenticate(self, token: Token, now: float) -> Member:
        """The member who holds ``token``. Raises `Unauthorized`: nobody does, or it is revoked or has expired.

        Only reads memory. :meth:`note_uses` is to follow.
        """
        return self._holder(token.id, token.kind, token.hash, now)

    def _holder(self, token: str, kind: HolderKind, digest: str, now: float) -> Member:
        member = self._by_token.get(token)
        if member is None or member.kind is not kind or not member.valid(now):
            raise Unauthorized(_UNKNOWN)
        if not any(keys.same(known, digest) for known in (member.hash, member.next_hash or "")):
            raise Unauthorized(_UNKNOWN)
        return replace(member, renew=False) if member.next_hash == digest else member

    def note_uses(self, uses: Mapping[str, tuple[str, float]]) -> None:
        """Note who came in: names, each with the hash of the token's secret and when; no more often than every
        `USED_EVERY_S`. The first use of a renewed token ends the old one.
        """
        renewed, used = [], []
        for name, (digest, now) in uses.items():
            member = self.by_name.get(name)
            if member is None:
                continue
            if member.next_hash == digest:
                renewed.append((name, digest))
            if member.used is None or member.used < self.noted_from or now - member.used >= USED_EVERY_S:
                used.append((now, name))
        if renewed or used:
            with self._change() as file:
                promote = (
                    "UPDATE members SET hash = next_hash, next_hash = NULL, renew = 0 WHERE name = ? AND next_hash = ?"
                )
                file.executemany(promote, renewed)
                file.executemany("UPDATE members SET used = ? WHERE name = ?", used)

    def replace(self, name: str, digest: str) -> None:
        """Let in a member's new token, whose secret's hash is ``digest``; its first use ends the old one."""
        self._known(name)
        with self._change() as file:
            file.execute("UPDATE members SET next_hash = ? WHERE name = ?", (digest, name))

    def renew(self, name: str | None, now: float) -> int:
        """Have the member ``name``, or every one (None), make itself a new token; return how many are to.

        Raises `ConfigError`: nobody has the name, or the membership is over.
        """
        names = [member.name for member in self.by_name.values() if name in (None, member.name) and member.valid(now)]
        if name is not None and not names:
            self._known(name)
            raise ConfigError(f"{name} is no member any more: rpcsys lab invite {name}")
        with self._change() as file:
            file.executemany("UPDATE members SET renew = 1 WHERE name = ?", [(each,) for each in names])
        return len(names)

    def revoke(self, name: str, now: float) -> None:
        """End a membership, and an invitation of that name that waits. Raises `ConfigError`: nobody has the name."""
        waits = self._file.execute("SELECT 1 FROM invitations WHERE name = ? AND taken IS NULL", (name,)).fetchone()
        if waits is None:
            self._known(name)
        with self._change() as file:
            file.execute(
                "UPDATE members SET revoked = ?, next_hash = NULL, renew = 0 WHERE name = ? AND revoked IS NULL",
                (now, name),
            )
            file.execute("DELETE FROM invitations WHERE name = ?", (name,))

    def _known(self, name: str) -> Member:
        if name not in self.by_name:
            raise ConfigError(f"the lab has no member {name}: rpcsys lab members lists them")
        return self.by_name[name]


def _member(row: tuple[Any, ...]) -> Member:
    name, kind, token, digest, next_digest, device_keys, groups, *times, renew, subject = row
    own_keys, own_groups = tuple(json.loads(device_keys)), tuple(json.loads(groups))
    member = Member(name, HolderKind(kind), token, digest, next_digest, own_keys, own_groups, *times)
    return replace(member, renew=bool(renew), subject=subject)


def _add(file: sqlite3.Connection, *values: Any) -> None:
    """Write a member, in place of one whose membership is over."""
    file.execute(f"INSERT OR REPLACE INTO members ({_COLUMNS}) VALUES ({','.join('?' * len(values))})", values)


def _version(file: sqlite3.Connection) -> int:
    return int(file.execute("PRAGMA user_version").fetchone()[0])


def check_rights(folder: Path) -> None:
    """Raises `ConfigError`: the lab's folder does not exist, or others may read it."""
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"cannot use the lab's folder {folder}: {error.strerror}; name another, or rpcsys lab init makes one"
        ) from None
    if mode & 0o077:
        raise ConfigError(f"others may read the lab's folder {folder}: type chmod 700 {folder}")
