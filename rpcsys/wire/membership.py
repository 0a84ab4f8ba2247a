"""Messages about the members of a lab, to a tracker with one (docs/wire.md, "Members of a lab").

Each is a question with an answer. Secrets do not travel but in `Invite`'s answer: a holder makes a token's secret, and
sends the secret's hash (`rpcsys.wire.tokens.hash_of`).
"""

from __future__ import annotations

import re
from typing import Any

from rpcsys.wire import checks, control, results
from rpcsys.wire.checks import field, optional
from rpcsys.wire.control import Ask
from rpcsys.wire.tokens import HolderKind

MAX_KEYS, MAX_GROUPS = 64, 64  # of one member
MAX_PAGE = 1000  # members, or lines of the audit log, in one answer
EVERYONE = "*"
_HASH = re.compile("[0-9a-f]{64}").fullmatch


def is_hash(text: object) -> bool:
    """Whether ``text`` has the form of a secret's hash."""
    return isinstance(text, str) and _HASH(text) is not None


def _hash(value: Any, name: str) -> str:
    if not is_hash(value):
        raise checks.wrong(name, "the SHA-256 of a secret", "another text")
    return str(value)


def _kind(value: Any, name: str) -> HolderKind:
    try:
        return HolderKind(value)
    except ValueError:
        raise checks.wrong(name, "p, b or x", value) from None


def _few(check: checks.Check, most: int) -> checks.Check:
    def check_all(value: Any, name: str) -> tuple[Any, ...]:
        if type(value) is list and len(value) > most:
            raise checks.wrong(name, f"a list of at most {most} entries", value)
        found: tuple[Any, ...] = checks.items(check)(value, name)
        return found

    return check_all


_keys, _groups = _few(checks.key, MAX_KEYS), _few(checks.text, MAX_GROUPS)
_page = checks.integer(1, MAX_PAGE)


class WhoAmI(Ask, op="whoami"):
    """Who the asking member is. Answer: lab, member, kind, groups, keys, joined, expires, used.

    Its rights are in the hello's answer, which follows the rules.
    """


class ListMembers(Ask, op="members"):
    """The members whose names come after ``after``, and the invitations that wait. The answer's ``next`` is the next
    question's ``after``, "" at the end.
    """

    after: str = field(checks.text, default="")
    limit: int = field(_page, default=MAX_PAGE)


class Invite(Ask, op="invite"):
    """Invite one to be the member ``name``. Answer: ``invitation``, the line that he pastes.

    ``keys``: those that a board may offer. ``lasts_s``: seconds until the membership expires, None for never;
    ``again``: an invitation of that name that waits is replaced.
    """

    name: str = field(checks.text)
    kind: HolderKind = field(_kind, default=HolderKind.PERSON)
    keys: tuple[str, ...] = field(_keys, default=tuple)
    groups: tuple[str, ...] = field(_groups, default=tuple)
    lasts_s: float | None = field(optional(checks.seconds), default=None)
    again: bool = field(checks.flag, default=False)


class Enrol(Ask, op="enrol"):
    """Make ``name`` a member at once, with a token whose secret has the hash ``hash``. For boards and proxies.

    Answer: lab, trackers, pins, and ``token``, the token's ID. The same question again has the same answer.
    ``again``: as that of `Invite`.
    """

    name: str = field(checks.text)
    kind: HolderKind = field(_kind)
    hash: str = field(_hash)
    keys: tuple[str, ...] = field(_keys, default=tuple)
    again: bool = field(checks.flag, default=False)


class Revoke(Ask, op="revoke"):
    """End a membership, or an invitation that waits. Its connections end, and its leases."""

    name: str = field(checks.text)


class RenewToken(Ask, op="renew_token"):
    """Have a member, or `EVERYONE`, make itself a new token. Answer: ``asked``, how many are to."""

    name: str = field(checks.text)


class ReplaceToken(Ask, op="replace_token"):
    """The asking member has a new token, whose secret has the hash ``hash``. Its first use ends the old one."""

    hash: str = field(_hash)


class Rotate(Ask, op="rotate"):
    """Put the tracker's spare key in service, and make another one. Answer: ``pins``, and ``spare``, the new file.

    ``spare``: the spare's PEM, where it is kept elsewhere. ``force``: also if members would be locked out, who have not
    connected since the last rotation; their names are in the refusal.
    """

    spare: str = field(checks.sentence, default="")
    force: bool = field(checks.flag, default=False)


class SetOpen(Ask, op="set_open"):
    """Serve clients and servers without a credential, too (``open``), or no longer."""

    open: bool = field(checks.flag)


class Audit(Ask, op="audit"):
    """Lines of the audit log from the line number ``start`` (from 1) on. Answer: ``lines``, ``next`` (0 at the end)."""

    start: int = field(checks.integer(1, checks.MAX_ID), default=1)
    limit: int = field(_page, default=MAX_PAGE)


class ReadPage(Ask, op="page"):
    """What the tracker serves over HTTP at ``path``. Answer: ``kind``, the content's type, and ``body``, which
    `rpcsys.wire.page_body` packs.
    """

    path: str = field(checks.sentence)  # names in it are percent-encoded: up to twelve characters for one


MESSAGES = (WhoAmI, ListMembers, Invite, Enrol, Revoke, RenewToken, ReplaceToken, Rotate, SetOpen, Audit)
#: The messages that a tracker accepts, by ``op``.
TO_TRACKER: dict[str, type[Ask]] = {
    **control.TO_TRACKER,
    **{message.op: message for message in (*MESSAGES, ReadPage, *results.MESSAGES)},
}
