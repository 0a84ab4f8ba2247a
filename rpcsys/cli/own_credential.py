"""The credential of whoever types a command: where it is, and what else is there. With sudo, it is the user's own."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rpcsys.errors import ConfigError, UsageError
from rpcsys.link import credential, renewal
from rpcsys.link.credential import Credential
from rpcsys.query import terminal
from rpcsys.tracker.access import is_name


def login_name() -> str:
    """The name of whoever types, empty if that can be no member's name."""
    user = _by_sudo()
    try:
        name = user.pw_name if user else getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return ""
    return name if is_name(name) else ""


def path_of(lab: str) -> str:
    """Where the credential for ``lab`` is kept."""
    user = _by_sudo()
    if user is None:
        return credential.path_of(lab)
    return str(Path(user.pw_dir) / ".config" / "rpcsys" / "labs" / os.path.basename(credential.path_of(lab)))


def others(addresses: Iterable[str], path: str) -> list[str]:
    """The files beside ``path`` with credentials for any of ``addresses``. One that is damaged is none."""
    wanted = credential.addresses(addresses)
    found = []
    with contextlib.suppress(OSError):
        for file in sorted(Path(path).parent.glob("*.json")):
            with contextlib.suppress(ConfigError):
                held = credential.read(str(file))
                if str(file) != path and wanted & credential.addresses(held.trackers):
                    found.append(str(file))
    return found


def known(path: str) -> Credential | None:
    """The credential in a file; None: it is absent or damaged."""
    with contextlib.suppress(ConfigError):
        return credential.read(path)
    return None


def keep_joined(place: str, own: Credential, answer: Mapping[str, Any], by_spare: bool, again: str) -> None:
    """Keep a new member's credential at ``place``, with what the tracker's answer to the hello hands out.

    ``by_spare``: whether the tracker has proven its second pin; ``again``: what to type after a failure. Another file
    for the same address is renamed. Raises UsageError: there is another lab's credential at ``place``. Raises
    `ConfigError`: it cannot be written.
    """
    before = known(place)
    if before is not None and not (
        before.lab == own.lab and credential.addresses(before.trackers) & credential.addresses(own.trackers)
    ):
        how = f"move it away, or give --out FILE, and {again}"
        raise UsageError(f"{place} is a credential of another lab, at {before.trackers[0]}: {how}")
    try:
        keep(place, own.text())
    except OSError as error:
        how = f"repair that, and {again}"
        raise ConfigError(f"cannot write the credential {place}: {error.strerror}; {how}") from None
    renewal.follow(own._replace(path=place), answer, by_spare)
    for other in others(own.trackers, place):
        os.replace(other, f"{other}.old")
        terminal.say(f"{other} was for the same address, and is {other}.old now", err=True)


def keep(path: str, text: str) -> None:
    """Write a file for the user alone, with sudo too. Raises OSError."""
    user = _by_sudo()
    new = [str(parent) for parent in Path(path).parents if not parent.exists()]
    credential.write_text(path, text)
    if user is not None and path.startswith(os.path.join(user.pw_dir, "")):
        for made in (path, *new):
            os.chown(made, user.pw_uid, user.pw_gid)


def _by_sudo() -> pwd.struct_passwd | None:
    """The user who has typed sudo, if one has."""
    name = os.environ.get("SUDO_USER", "")
    if os.geteuid() != 0 or name in ("", "root"):
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
