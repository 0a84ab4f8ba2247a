"""Becomes a member of a lab at the issuer that the lab's keeper trusts (OIDC), without an invitation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rpcsys.cli import device_flow, options, own_credential
from rpcsys.cli.lab import moment
from rpcsys.cli.lab_link import open_first
from rpcsys.client import answers
from rpcsys.errors import ConnectError, ProtocolError, UsageError
from rpcsys.link import credential
from rpcsys.link.address import parse_address, parse_tracker
from rpcsys.link.credential import Credential
from rpcsys.query import terminal
from rpcsys.tracker.access import is_name
from rpcsys.wire import checks, sign_in, tokens
from rpcsys.wire.checks import record
from rpcsys.wire.sign_in import LabLine
from rpcsys.wire.tokens import HolderKind, Token

_ISSUER = record(issuer=checks.sentence, client_id=checks.text)
_SIGNED_IN = record(lab=checks.text, member=checks.text, token=checks.text, expires=checks.seconds)


def line_of(where: str) -> LabLine:
    """The line of a lab, as it is or by the address in a credential. Raises UsageError: there is no such credential."""
    if where.strip().startswith(sign_in.PREFIX):
        return sign_in.parse_line(where)
    if os.path.isfile(where):
        raise UsageError(f"{where} is a file; for an invitation in it, type: rpcsys login <{where}")
    known = credential.for_replicas(parse_tracker(where, options.PORT))
    if known is None:
        how = "its keeper prints one with: rpcsys lab line"
        raise UsageError(f"there is no credential here for {where}; the first time, give the lab's line ({how})")
    return LabLine(known.trackers, known.pins)


def become_member(lab: LabLine, out: Path | None) -> None:
    """Sign in, and keep the credential in ``out``, or where this user's are."""
    addresses = [parse_address(address) for address in lab.addresses]
    stranger = Credential("of this line", "", lab.addresses, lab.pins, "")
    with open_first(addresses, stranger, {"sign_in": True}) as link:
        where = answers.from_tracker(_ISSUER, link.tracker.get("sign_in"), "answer")
    id_token = device_flow.id_token(where["issuer"], where["client_id"], lambda text: terminal.say(text, err=True))
    secret = tokens.new_secret()
    joining = {"id_token": id_token, "hash": tokens.hash_of(secret)}
    try:
        link = open_first(addresses, stranger, joining)
    except ConnectError:
        link = open_first(addresses, stranger, joining)  # the same sign-in
    with link:
        answer, by_spare = link.tracker, link.by_spare
    own, until = _own(lab, secret, answer)
    place = str((out or Path(own_credential.path_of(own.lab))).absolute())
    _check_member(place, own)
    own_credential.keep_joined(place, own, answer, by_spare, f"type rpcsys login {own.trackers[0]} again")
    terminal.say(
        f"you are {own.member} in lab {own.lab} until {moment(until)}; then type rpcsys login {own.trackers[0]} again"
    )


def _own(lab: LabLine, secret: str, answer: dict[str, Any]) -> tuple[Credential, float]:
    """The member's credential, and until when it is valid. Raises `ProtocolError`: the answer has no names for it."""
    found = answers.from_tracker(_SIGNED_IN, answer, "answer")
    if not (is_name(found["lab"]) and tokens.is_id(found["token"])):
        raise ProtocolError("the tracker has not said which lab this is")
    token = Token(HolderKind.PERSON, found["token"], secret)
    return Credential(found["lab"], found["member"], lab.addresses, lab.pins, token.text), found["expires"]


def _check_member(place: str, own: Credential) -> None:
    """Raises UsageError: the credential at ``place`` is another member's."""
    known = own_credential.known(place)
    if known is not None and known.lab == own.lab and known.member != own.member:
        how = f"move it away, or give --out FILE to be {own.member}"
        raise UsageError(f"{place} is the credential of {known.member}, another member of lab {own.lab}: {how}")
