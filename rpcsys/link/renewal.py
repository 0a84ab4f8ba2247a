"""What a member of a lab keeps of the answer to its hello: the tracker's new pins, and a new token where one is asked.

A new token is written beside the old one before the tracker hears of it. The tracker knows both until the new one was
used. So whatever is cut off where, the file has a token that is known.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from typing import Any, Iterator, Mapping, Tuple

from rpcsys.errors import ConfigError
from rpcsys.link import credential
from rpcsys.link.credential import Credential
from rpcsys.wire import tokens
from rpcsys.wire.tokens import PIN

_log = logging.getLogger("rpcsys.lab")


def follow(held: Credential, answer: Mapping[str, Any], by_spare: bool) -> str:
    """Keep what the answer to a hello hands out; return the hash to send in a `ReplaceToken`, empty for none.

    ``held``: the credential of the connection; ``by_spare``: whether the tracker has proven itself by the second of its
    pins. From such a tracker alone new pins are taken: whoever stole the first key can hand out nothing. Without a
    file, or where none can be written, nothing is kept.
    """
    wanted = answer.get("renew") is True
    pins = _pins(held, answer) if by_spare else held.pins
    if not held.path or not (wanted or pins != held.pins):
        return ""
    try:
        with _locked(held.path) as now:
            changed = now._replace(pins=pins) if now.pins == held.pins else now
            if wanted and now.token == held.token and not now.next_token:
                changed = changed._replace(next_token=_renewed(now.token))
            if changed != now:
                credential.rewrite(changed)
    except (OSError, ConfigError) as error:
        _log.warning("the new pins and token of lab %s cannot be kept: %s", held.lab, error)
        return ""
    return tokens.parse(changed.next_token).hash if wanted and changed.next_token else ""


def replaced(held: Credential, digest: str) -> None:
    """Use the new token from now on: the tracker knows it, whose secret has the hash ``digest``."""
    try:
        with _locked(held.path) as now:
            if now.next_token and tokens.parse(now.next_token).hash == digest:
                credential.rewrite(now._replace(token=now.next_token, next_token=""))
    except (OSError, ConfigError) as error:
        _log.warning("the new token of lab %s cannot be kept, and the old one stays: %s", held.lab, error)


def _pins(held: Credential, answer: Mapping[str, Any]) -> Tuple[str, ...]:
    """The pins to hold after the answer of a tracker that has proven the second one."""
    pins = answer.get("pins")
    if type(pins) is not list or len(pins) != 2 or not all(type(pin) is str and PIN(pin) for pin in pins):
        return held.pins
    return tuple(pins) if held.pins[1:] == (pins[0],) else held.pins


def _renewed(token: str) -> str:
    return tokens.parse(token)._replace(secret=tokens.new_secret()).text


@contextlib.contextmanager
def _locked(path: str) -> Iterator[Credential]:
    """The credential that the file ``path`` has now; no other process changes it meanwhile. Raises OSError."""
    while True:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):  # else it was replaced meanwhile
                yield credential.read(path)
                return
