"""Who sees the page and metrics of a lab's tracker: networks that its rules open, and members with the right ``see``.

A token is taken where nobody else can read it: inside TLS, or from this machine. One that was said elsewhere, or in a
URL, has leaked, and is reported without its text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from base64 import b64decode
from collections.abc import Callable
from urllib.parse import unquote

from rpcsys.daemon.guard import PageRequest, Refusal
from rpcsys.errors import ConfigError, Unauthorized
from rpcsys.link import web_guard
from rpcsys.link.address import parse_address
from rpcsys.tracker import access
from rpcsys.tracker.access import Right
from rpcsys.tracker.audit import AuditEntry
from rpcsys.tracker.lab import RunningLab
from rpcsys.tracker.strangers import Strangers
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind

log = logging.getLogger(__name__)
DID = "page"  # what the audit log calls it
NOTED_S = 3600.0  # between two entries of the audit log for one member at one address
MAX_NOTED = 4096
_LEAKED = (
    "a token {how} may have been read by others: count it as leaked, and have a keeper type rpcsys lab revoke NAME, "
    "then rpcsys lab invite NAME"
)


class PageGuard:
    """The guard of ``lab``; ``now``: seconds since 1970. Failures count as those at the tracker's own port."""

    def __init__(self, lab: RunningLab, strangers: Strangers, now: Callable[[], float]) -> None:
        self._lab = lab
        self._strangers = strangers
        self._now = now
        self._noted: dict[tuple[str, str], float] = {}

    async def __call__(self, asked: PageRequest) -> Refusal | None:
        """Why a request is refused; None if it is answered."""
        if tokens.occurs(unquote(asked.url)):
            return self._leaked(asked, unquote(asked.url), 400, "in a URL")
        said = _said(asked.authorization)
        if tokens.occurs(said) and not (asked.encrypted or _from_here(asked)):
            return self._leaked(asked, said, 403, "over HTTP without TLS")
        if asked.path == web_guard.HEALTH:
            return None
        scheme, _, token = said.partition(" ")
        if scheme.lower() == "bearer":
            late = self._strangers.late(asked.address)
            if late:
                await asyncio.sleep(late)
            return self._of_member(asked, token.strip())
        if not (self._lab.view.open or self._lab.access.shows_page(asked.address)):
            return Refusal(401, self._wanted(asked))
        own = [parse_address(address)[0].lower() for address in self._lab.folder.settings.addresses]
        why = web_guard.foreign(asked.address, asked.host, asked.origin, own)
        return Refusal(403, why) if why else None

    def _of_member(self, asked: PageRequest, text: str) -> Refusal | None:
        now = self._now()
        try:
            member = self._lab.bearer(text, now)
        except Unauthorized as problem:
            self._strangers.failed(asked.address, "credential")
            return self._refuse(asked, 401, "", str(problem))
        if member.kind is not HolderKind.PERSON:
            return self._refuse(asked, 403, member.name, f"{member.name} is no person: boards and proxies see no page")
        why = access.lacks(self._lab.access, member.name, Right.SEE)
        if why:
            return self._refuse(asked, 403, member.name, why)
        self._note(member.name, asked.address, now)
        return None

    def _note(self, name: str, address: str, now: float) -> None:
        """Audit that a member sees the page: once in a while, for programs ask every few seconds."""
        if now - self._noted.get((name, address), 0.0) < NOTED_S:
            return
        if len(self._noted) >= MAX_NOTED:
            self._noted.clear()
        self._noted[name, address] = now
        self._lab.trail.note(AuditEntry(now, name, address, DID))

    def _refuse(self, asked: PageRequest, status: int, who: str, why: str) -> Refusal:
        self._lab.trail.note(AuditEntry(self._now(), who, asked.address, DID, "", why))
        return Refusal(status, why)

    def _leaked(self, asked: PageRequest, text: str, status: int, how: str) -> Refusal:
        """Report a token that others may have read; ``text`` has it."""
        now = self._now()
        try:
            who = self._lab.members.authenticate(tokens.first(text), now).name
        except (Unauthorized, ConfigError):
            who = ""
        self._strangers.failed(asked.address, "clear")
        self._lab.trail.note(AuditEntry(now, who, asked.address, DID, "", f"a token {how}: it has leaked"))
        whose, then = (f"the token of {who}", f"rpcsys lab revoke {who}") if who else ("an unknown token", "nothing")
        where = {"stranger": asked.address}
        log.warning("%s said %s %s: it has leaked; type %s", asked.address, whose, how, then, extra=where)
        return Refusal(status, _LEAKED.format(how=how))

    def _wanted(self, asked: PageRequest) -> str:
        lab = self._lab.folder.settings.name
        return (
            f"lab {lab} shows this to its members: type rpcsys connect --page 9180 on your desk, or show a token with "
            f"the right 'see' over HTTPS (Authorization: Bearer), or have its keeper add {asked.address} to [page] open"
        )


def _said(authorization: str) -> str:
    """What the field ``Authorization`` says; as a password, too, a token may have been said to everybody."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            return b64decode(rest).decode("utf-8", "replace")
    return authorization


def _from_here(asked: PageRequest) -> bool:
    return web_guard.from_loopback(asked.address) or asked.address == asked.local != ""
