"""The folder of a lab: ``lab.json`` (its name, addresses and pins), the tracker's two keys, rules, members and audit.

The tracker proves itself by the key whose pin is the first in ``lab.json``; the second is that of the spare, which
:meth:`LabFolder.rotate` puts in its place. Each key has a file with the beginning of its pin as its name. ``lab.json``
is replaced in one step: a kill leaves the lab as before it or as after it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rpcsys.errors import ConfigError
from rpcsys.link import identity
from rpcsys.link.address import parse_address
from rpcsys.link.credential import Credential
from rpcsys.link.identity import Identity
from rpcsys.tracker import members
from rpcsys.tracker.access import is_name
from rpcsys.tracker.members import Members
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind

SETTINGS, POLICY = "lab.json", "policy.toml"
KEEPERS = "keepers"
VERSION = 1
MAX_ADDRESSES = 32
_FIRST_POLICY = """\
# Who may do what in the lab {name}. The tracker reads this file again when it changes; a mistake changes nothing.

[[allow]]
who    = ["keepers"]              # a group: rpcsys lab invite NAME --group keepers
rights = ["keeper"]

[[allow]]
who     = ["*"]                   # every member
keys    = ["*"]
modules = ["*"]
rights  = ["see"]
"""


@dataclass(frozen=True)
class Settings:
    """What ``lab.json`` holds. ``open``: peers without a credential are served, too, while a lab is moved over.

    ``rotated``: when the key in service came there, in seconds since 1970; 0 for the lab's first one.
    """

    name: str
    addresses: tuple[str, ...]
    pins: tuple[str, str]  # of the key in service and the spare, as ``sha256:DIGITS``
    open: bool = False
    rotated: float = 0.0


class LabFolder:
    """A lab's folder. Raises `ConfigError`: it is none, is damaged, or others may read it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        members.check_rights(self.path)
        self.settings = self._read()

    @property
    def policy_path(self) -> Path:
        """Where the rules are."""
        return self.path / POLICY

    @property
    def spare_path(self) -> Path:
        """Where the spare is, unless it is kept elsewhere."""
        return self.path / _file_of(self.settings.pins[1])

    def identity(self) -> Identity:
        """The key in service. Raises `ConfigError`: it is not in the folder."""
        return self._find(self.settings.pins[0], "the tracker's key")

    def spare(self) -> Identity:
        """The spare. Raises `ConfigError`: it is kept elsewhere."""
        return self._find(self.settings.pins[1], "the spare key")

    def rotate(self, spare: str = "", now: float | None = None) -> Settings:
        """Put the spare in service and make a new one. ``spare``: its PEM, where it is not in the folder.

        ``now``: the time, in seconds since 1970.

        Raises `ConfigError`: the spare is missing, or another one, or the disk is full.
        """
        own = identity.parse(spare) if spare else self.spare()
        if _shown(own) == self.settings.pins[0]:
            raise ConfigError(f"this key of lab {self.settings.name} is in service already: leave out --spare")
        if _shown(own) != self.settings.pins[1]:
            raise ConfigError(f"this is not the spare key of lab {self.settings.name}: its pin is {_shown(own)}")
        new = identity.new()
        old = self.path / _file_of(self.settings.pins[0])
        try:
            for key in (own, new):
                _write(self.path / _file_of(_shown(key)), key.pem())
            rotated = time.time() if now is None else now
            self.change(replace(self.settings, pins=(_shown(own), _shown(new)), rotated=rotated))
            old.unlink(missing_ok=True)
        except OSError as error:
            raise _unwritten(self.path, error) from None
        return self.settings

    def change(self, settings: Settings) -> None:
        """Replace ``lab.json``. Raises `ConfigError`: the disk is full, say; nothing is changed."""
        try:
            _write(self.path / SETTINGS, _text(settings))
        except OSError as error:
            raise _unwritten(self.path / SETTINGS, error) from None
        self.settings = settings

    def credential(self, member: str, token: str) -> Credential:
        """The credential of a member with this token."""
        return Credential(self.settings.name, member, self.settings.addresses, self.settings.pins, token)

    def _read(self) -> Settings:
        path = self.path / SETTINGS
        try:
            return _parse(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; rpcsys lab init makes a lab") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(f"{path} is damaged: restore it from a copy of the folder") from None

    def _find(self, pin: str, what: str) -> Identity:
        path = self.path / _file_of(pin)
        try:
            own = identity.parse(path.read_text("ascii", "replace"), str(path))
        except OSError as error:
            how = (
                "restore it, or give the spare's file: rpcsys lab recover --spare FILE, rpcsys lab rotate --spare FILE"
            )
            what = f"{what} of lab {self.settings.name}"
            raise ConfigError(f"cannot read {path}, {what}: {error.strerror}; {how}") from None
        if _shown(own) != pin:
            raise ConfigError(f"{path} is not {what} of lab {self.settings.name}: restore it from a copy")
        return own


def create(
    path: str | Path, name: str, addresses: Sequence[str], founder: str, *, open_too: bool = False
) -> Credential:
    """Make a lab's folder, and its founder, who is keeper; return the founder's credential.

    ``addresses``: of its tracker, HOST:PORT. ``open_too``: it serves peers without a credential, too, until it is
    closed. Raises `ConfigError`: a name or address is invalid, the folder has something, or cannot be written; then
    there is no folder.
    """
    path = Path(path)
    if not is_name(name):
        raise ConfigError(f"{name!r} is no name for a lab: letters, digits and ._@+-, at most 64")
    if not 1 <= len(addresses) <= MAX_ADDRESSES:
        raise ConfigError(f"a lab has 1 to {MAX_ADDRESSES} addresses")
    for address in addresses:
        parse_address(address)
    _refuse_used(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    key, spare = identity.new(), identity.new()
    settings = Settings(name, tuple(addresses), (_shown(key), _shown(spare)), open_too)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir(0o700)
        texts = {
            **{_file_of(_shown(own)): own.pem() for own in (key, spare)},
            POLICY: _FIRST_POLICY.format(name=name),
            SETTINGS: _text(settings),
        }
        for file, text in texts.items():
            _write(partial / file, text)
        token = _found(partial, founder)
        os.rename(partial, path)
    except OSError as error:
        raise _unwritten(path, error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return LabFolder(path).credential(founder, token)


def _refuse_used(path: Path) -> None:
    if (path / SETTINGS).exists():
        raise ConfigError(f"{path} has a lab already: rpcsys lab recover --dir {path} makes a keeper's credential anew")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} is not empty: name a folder that does not exist yet")


def _found(path: Path, founder: str) -> str:
    """Make the first member, a keeper; return the token."""
    now = time.time()
    known = Members(path)
    try:
        invitation, secret = known.invite(founder, HolderKind.PERSON, now, groups=(KEEPERS,))
        token = tokens.Token(HolderKind.PERSON, invitation, tokens.new_secret())
        known.join(invitation, secret, token.hash, now)
    finally:
        known.close()
    return token.text


def _file_of(pin: str) -> str:
    digits = pin.partition(":")[2]
    return f"key-{digits[:8]}.pem"


def _shown(own: Identity) -> str:
    return f"sha256:{own.pin}"


def _text(settings: Settings) -> str:
    return json.dumps({"version": VERSION, **vars(settings)}, indent=1) + "\n"


def _parse(text: str) -> Settings:
    """Raises ValueError, KeyError, TypeError: the text is no ``lab.json``."""
    fields: dict[str, Any] = json.loads(text)
    if fields["version"] != VERSION:
        raise ConfigError("this lab's folder was written by a newer rpcsys: upgrade this one")
    first, second = fields["pins"]
    found = Settings(fields["name"], tuple(fields["addresses"]), (first, second), fields["open"])
    found = replace(found, rotated=float(fields.get("rotated", 0.0)))
    if not (is_name(found.name) and tokens.PIN(first) and tokens.PIN(second) and type(found.open) is bool):
        raise ValueError(text)
    for address in found.addresses:
        parse_address(address)
    return found


def _write(path: Path, text: str) -> None:
    """Write a file for its owner alone, in one step. Raises OSError."""
    partial = path.with_name(path.name + ".partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _unwritten(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write {path}: {error.strerror}; the lab is as it was")
