"""Tokens of a lab's members, and invitations to become one.

A **token** is ``rpcsys_p_ID_SECRET``: its letter is the kind of its holder, its ID may be known, its SECRET proves who
holds it. The holder makes it. The tracker keeps the secret's hash only, so a join that is repeated is the same join.
An **invitation** is one line with the addresses of a tracker, its pins, and a secret that one join uses up.
"""

from __future__ import annotations

import base64
import binascii
import enum
import json
import os
import re
from typing import Any, Iterable, NamedTuple, Sequence

from rpcsys.errors import ConfigError, UsageError

ID_CHARACTERS = 8
SECRET_BYTES = 32
_ID = f"[a-z2-7]{{{ID_CHARACTERS}}}"
_SECRET = "[A-Za-z0-9_-]{43}"  # 32 bytes in URL-safe base64 without padding
_TOKEN = re.compile(f"rpcsys_(?P<kind>[pbx])_(?P<id>{_ID})_(?P<secret>{_SECRET})")
_IS_ID, _IS_SECRET = re.compile(_ID).fullmatch, re.compile(_SECRET).fullmatch
INVITATION = "rpcsys-invitation:"
_VISIBLE = re.compile(f"{INVITATION}|rpcsys_[pbx]_{_ID}_").search
MAX_INVITATION = 8192  # characters; more than 20 addresses need
PIN = re.compile("sha256:[0-9a-f]{64}").fullmatch
MAX_ADDRESSES, MAX_PINS = 32, 2


class HolderKind(str, enum.Enum):
    """What holds a token."""

    PERSON = "p"  # or a program
    BOARD = "b"
    PROXY = "x"


class Token(NamedTuple):
    """The parts of a token."""

    kind: HolderKind
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"<token {self.id}>"

    @property
    def text(self) -> str:
        """The token itself. It is for the connection to its tracker and its holder's file alone."""
        return f"rpcsys_{self.kind.value}_{self.id}_{self.secret}"

    @property
    def hash(self) -> str:
        """What the tracker keeps of it."""
        return hash_of(self.secret)


def new(kind: HolderKind) -> Token:
    """A new token, from the operating system's random numbers."""
    return Token(kind, new_id(), new_secret())


def is_id(text: str) -> bool:
    """Whether a token's ID has this form."""
    return _IS_ID(text) is not None


def new_id() -> str:
    """A new ID: 40 random bits in base32."""
    return base64.b32encode(os.urandom(5)).decode().lower()


def new_secret() -> str:
    """A new secret: 256 random bits in URL-safe base64."""
    return base64.urlsafe_b64encode(os.urandom(SECRET_BYTES)).decode().rstrip("=")


def hash_of(secret: str) -> str:
    """The SHA-256 of a secret, as 64 hexadecimal digits. A secret of 256 random bits needs no slower hash."""
    import hashlib  # here: it loads OpenSSL, and who only reads a credential needs none

    return hashlib.sha256(secret.encode()).hexdigest()


def parse(text: str) -> Token:
    """The parts of a token. Raises `ConfigError`, without its text: it has another form."""
    return _made(_TOKEN.fullmatch(text))


def occurs(text: str) -> bool:
    """Whether a token, or the beginning of one, is in a text."""
    return any(f"rpcsys_{kind.value}_" in text for kind in HolderKind)


def refuse_visible(arguments: Iterable[str]) -> None:
    """Raises `UsageError`, without its text: a token or an invitation is among a command's arguments."""
    if any(map(_VISIBLE, arguments)):
        raise UsageError(
            "an invitation or a token on the command line is visible to everybody on this machine (ps): ask for "
            "another one, and give it to rpcsys login on standard input"
        )


def first(text: str) -> Token:
    """The first token in a text. Raises `ConfigError`: no whole one is in it."""
    return _made(_TOKEN.search(text))


def _made(found: re.Match[str] | None) -> Token:
    if found is None:
        raise ConfigError("this is no token of a lab: it begins with rpcsys_p_, rpcsys_b_ or rpcsys_x_")
    return Token(HolderKind(found["kind"]), found["id"], found["secret"])


class Invitation(NamedTuple):
    """An invitation: a tracker's ``addresses`` (HOST:PORT) and ``pins`` (``sha256:DIGITS``), and the join's secret."""

    addresses: tuple[str, ...]
    pins: tuple[str, ...]
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"<invitation {self.id}>"

    @property
    def text(self) -> str:
        """The one line that its receiver pastes."""
        fields = {"a": self.addresses, "p": self.pins, "i": self.id, "s": self.secret}
        data = json.dumps(fields, separators=(",", ":")).encode()
        return INVITATION + base64.urlsafe_b64encode(data).decode().rstrip("=")


def invitation(addresses: Sequence[str], pins: Sequence[str]) -> Invitation:
    """A new invitation to the tracker at ``addresses``."""
    return Invitation(tuple(addresses), tuple(pins), new_id(), new_secret())


def parse_invitation(text: str) -> Invitation:
    """Read an invitation; mail and terminals may have broken its line. Raises `ConfigError`: it is damaged, or none."""
    line = "".join(text.split())
    if not line.startswith(INVITATION):
        raise ConfigError(f"this is no invitation: one begins with {INVITATION} (rpcsys lab invite NAME prints it)")
    data = line[len(INVITATION) :]
    try:
        if len(line) > MAX_INVITATION:
            raise ValueError
        fields = json.loads(base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True))
        found = Invitation(texts(fields["a"], MAX_ADDRESSES), texts(fields["p"], MAX_PINS), fields["i"], fields["s"])
        if not (_IS_ID(found.id) and _IS_SECRET(found.secret) and all(map(PIN, found.pins))):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise ConfigError("this invitation is not whole: copy its line again, to the last character") from None
    return found


def texts(value: Any, most: int) -> tuple[str, ...]:
    """One to ``most`` printable texts. Raises ValueError: anything else."""
    if type(value) is not list or not 1 <= len(value) <= most:
        raise ValueError
    if not all(type(text) is str and 0 < len(text) <= 256 and text.isprintable() for text in value):
        raise ValueError
    return tuple(value)
