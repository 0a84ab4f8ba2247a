"""Answers the messages about a lab's members, and takes those in who join (docs/wire.md, "Members of a lab").

Whether a member has the right to a message is decided before. One thread calls :meth:`Membership.answer` and
:meth:`Membership.join`, which write files. What they change is on the disk when they return.
"""

from __future__ import annotations

import collections
import json
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from rpcsys.errors import ConfigError, Forbidden, TrackerError, Unauthorized, one_line
from rpcsys.tracker import policy
from rpcsys.tracker.audit import AuditEntry, AuditLog, AuditReader
from rpcsys.tracker.lab_folder import LabFolder
from rpcsys.tracker.lab_view import Member
from rpcsys.tracker.members import Members
from rpcsys.wire import membership
from rpcsys.wire.control import Answer, Ask
from rpcsys.wire.tokens import HolderKind, Invitation

MAX_BYTES = 768 << 10  # of the members in one answer, as JSON: a frame holds 1 MiB
_NAMED = 20  # members in a refusal

_log = logging.getLogger("rpcsys.tracker")


@dataclass(frozen=True)
class Changes:
    """What the tracker's service acts upon, beside what it reads in the lab's files.

    ``renewed``: who is to make a new token or to use it, `membership.EVERYONE` for all; ``pins``: another key is in
    service.
    """

    renewed: str = ""
    pins: bool = False


class SignedIn(NamedTuple):
    """Whom an issuer has named: ``subject`` is who he is there, ``name`` and ``groups`` what he is called here."""

    subject: str
    name: str
    groups: tuple[str, ...]


class Membership:
    """The members of the lab in ``folder``. ``audit``: where it is recorded what was done, if anywhere.

    ``changes``: the oldest is at the left; any thread may take them.
    """

    def __init__(self, folder: LabFolder, members: Members, audit: AuditLog | None) -> None:
        self.changes: collections.deque[Changes] = collections.deque()
        self._folder = folder
        self._members = members
        self._audit = audit
        self._lines = AuditReader(folder.path)
        members.noted_from = folder.settings.rotated

    def join(self, invitation: str, digest: str, now: float, came_from: str = "") -> Member:
        """Make whoever has an ``invitation`` (``ID.SECRET``) a member, with a token whose secret's hash is ``digest``.

        The same join again has the same result. Raises `Unauthorized`: the invitation is used, too old or none.
        Raises `ConfigError`: the disk is full, say; then nothing has changed.
        """
        number, _, secret = invitation.partition(".")
        if not membership.is_hash(digest):
            raise Unauthorized("the hello has no hash of a token's secret")
        member = self._members.join(number, secret, digest, now)
        self._record(AuditEntry(now, member.name, came_from, "join"))
        return member

    def sign_in(self, who: SignedIn, digest: str, lasts_s: float, now: float, came_from: str = "") -> Member:
        """Make whom an issuer names a member for ``lasts_s`` seconds, as `Members.sign_in` does.

        A group that has a member's name is left out. Raises `Unauthorized`: there is no hash of a token's secret.
        Raises `Forbidden`, `ConfigError`: the name is another's, or a group's.
        """
        if not membership.is_hash(digest):
            raise Unauthorized("the hello has no hash of a token's secret")
        groups = [group for group in who.groups if group not in self._members.by_name]
        result = ""
        try:
            self._check_names(who.name, groups)
            member = self._members.sign_in(who.name, who.subject, digest, now, groups=groups, lasts_s=lasts_s)
        except (ConfigError, Forbidden) as error:
            result = one_line(error, None)
            raise
        finally:
            self._record(AuditEntry(now, who.name, came_from, "sign in", who.subject, result))
        return member

    def answer(self, member: Member, message: Ask, now: float, came_from: str = "") -> Answer:
        """Answer a message of ``member``, who may send it; ``came_from`` is the address, for the audit log."""
        did = _did(message)
        on = str(getattr(message, "name", ""))
        result = ""
        try:
            fields = _ANSWERS[type(message)](self, member, message, now)
            return Answer(message.id, True, fields=fields)
        except (ConfigError, TrackerError) as error:
            result = one_line(error, None)
            return Answer(message.id, False, type(error).__name__, result)
        except sqlite3.Error as error:
            result = f"the tracker cannot read its members: {error}"
            return Answer(message.id, False, "ConfigError", result)
        finally:
            if did:
                self._record(AuditEntry(now, member.name, came_from, did, on, result))

    def _record(self, entry: AuditEntry) -> None:
        if self._audit is None:
            return
        try:
            self._audit.write([entry])
        except OSError as error:
            _log.warning("%s by %s is not in the audit log: %s", entry.did, entry.who, error.strerror)

    # What members see

    def _whoami(self, member: Member, message: membership.WhoAmI, now: float) -> Mapping[str, Any]:
        return {"lab": self._folder.settings.name, "member": member.name, **_shown(member)}

    def _list(self, member: Member, message: membership.ListMembers, now: float) -> Mapping[str, Any]:
        rows: dict[str, dict[str, Any]] = {
            each.name: {**_shown(each), "revoked": each.revoked, "renew": each.renew, "invited_until": None}
            for each in self._members.by_name.values()
        }
        for waiting in self._members.invited(now):
            fields = {"kind": waiting.kind.value, "groups": waiting.groups, "keys": waiting.keys}
            rows.setdefault(waiting.name, fields)["invited_until"] = waiting.until
        page: list[dict[str, Any]] = []
        size = 0
        for name in sorted(name for name in rows if name > message.after):
            if len(page) == message.limit or size > MAX_BYTES:
                return {"members": page, "next": page[-1]["name"]}
            page.append({"name": name, **rows[name]})
            size += len(json.dumps(page[-1]))
        return {"members": page, "next": ""}

    def _audited(self, member: Member, message: membership.Audit, now: float) -> Mapping[str, Any]:
        try:
            lines, following = self._lines.page(message.start, message.limit)
        except OSError as error:
            raise ConfigError(f"the tracker cannot read its audit log: {error.strerror}") from None
        return {"lines": lines, "next": following}

    # What keepers do, and who may enrol

    def _invite(self, member: Member, message: membership.Invite, now: float) -> Mapping[str, Any]:
        _check_keys(message.name, message.kind, message.keys)
        self._check_names(message.name, message.groups)
        settings = self._folder.settings
        number, secret = self._members.invite(
            message.name, message.kind, now, device_keys=message.keys, groups=message.groups,
            lasts_s=message.lasts_s, again=message.again,
        )  # fmt: skip
        return {"invitation": Invitation(settings.addresses, settings.pins, number, secret).text}

    def _check_names(self, name: str, groups: Sequence[str] = ()) -> None:
        """Raises `ConfigError`: a member would have a group's name. The rules could not be read any more."""
        members = {each.name: each.groups for each in self._members.by_name.values()}
        lab = self._folder.settings.name
        try:
            known = policy.load(self._folder.policy_path, lab, members).groups
        except ConfigError:  # the tracker goes on with rules from before
            known = {}
        if name in {*known, *groups}:
            raise ConfigError(f"{name} is a group in lab {lab}: choose another name for the member")
        for group in groups:
            if group in members:
                raise ConfigError(f"{group} is a member of lab {lab}: choose another name for the group")

    def _enrol(self, member: Member, message: membership.Enrol, now: float) -> Mapping[str, Any]:
        if message.kind is HolderKind.PERSON:
            raise Forbidden(f"people are not enrolled but invited: rpcsys lab invite {message.name}")
        _check_keys(message.name, message.kind, message.keys)
        self._check_names(message.name)
        keys, again = message.keys, message.again
        made = self._members.enrol(message.name, message.kind, message.hash, now, device_keys=keys, again=again)
        settings = self._folder.settings
        return {"lab": settings.name, "trackers": settings.addresses, "pins": settings.pins, "token": made.token}

    def _revoke(self, member: Member, message: membership.Revoke, now: float) -> Mapping[str, Any]:
        self._members.revoke(message.name, now)
        return {}

    def _renew(self, member: Member, message: membership.RenewToken, now: float) -> Mapping[str, Any]:
        name = None if message.name == membership.EVERYONE else message.name
        asked = self._members.renew(name, now)
        self.changes.append(Changes(renewed=message.name))
        return {"asked": asked}

    def _replace(self, member: Member, message: membership.ReplaceToken, now: float) -> Mapping[str, Any]:
        self._members.replace(member.name, message.hash)
        if member.kind is not HolderKind.PERSON:  # who stays connected for months: the old token ends with its next use
            self.changes.append(Changes(renewed=member.name))
        return {}

    def _rotate(self, member: Member, message: membership.Rotate, now: float) -> Mapping[str, Any]:
        behind = self._behind(now)
        if behind and not message.force:
            others = f" and {len(behind) - _NAMED} others" if len(behind) > _NAMED else ""
            raise Forbidden(
                f"a rotation locks out who has not connected since the last one: {', '.join(behind[:_NAMED])}{others}; "
                "rpcsys lab rotate --force does it all the same"
            )
        settings = self._folder.rotate(message.spare, now)
        self._members.noted_from = settings.rotated
        self.changes.append(Changes(pins=True))
        return {"pins": settings.pins, "spare": str(self._folder.spare_path)}

    def _behind(self, now: float) -> list[str]:
        """The members who hold the pins of before the last rotation: neither key would be known to them."""
        rotated = self._folder.settings.rotated
        return [
            each.name
            for each in self._members.by_name.values()
            if each.valid(now) and max(each.joined, each.used or 0.0) < rotated
        ]

    def _set_open(self, member: Member, message: membership.SetOpen, now: float) -> Mapping[str, Any]:
        self._folder.change(replace(self._folder.settings, open=message.open))
        return {"open": message.open}


def _shown(member: Member) -> dict[str, Any]:
    fields = asdict(member)
    return {name: fields[name] for name in ("kind", "groups", "keys", "joined", "expires", "used")}


def _check_keys(name: str, kind: HolderKind, keys: Sequence[str]) -> None:
    if kind is HolderKind.BOARD and not keys:
        raise ConfigError(f"a board's credential names its keys: {name} has none (--key KEY)")
    if kind is HolderKind.PERSON and keys:
        raise ConfigError(f"only boards and proxies have keys: {name} is none (--board, --proxy)")


_ANSWERS: dict[type[Ask], Callable[[Membership, Member, Any, float], Mapping[str, Any]]] = {
    membership.WhoAmI: Membership._whoami,
    membership.ListMembers: Membership._list,
    membership.Invite: Membership._invite,
    membership.Enrol: Membership._enrol,
    membership.Revoke: Membership._revoke,
    membership.RenewToken: Membership._renew,
    membership.ReplaceToken: Membership._replace,
    membership.Rotate: Membership._rotate,
    membership.SetOpen: Membership._set_open,
    membership.Audit: Membership._audited,
}
_READS = (membership.WhoAmI, membership.ListMembers, membership.Audit)


def _did(message: Ask) -> str:
    """What the audit log calls a message; empty for those that change nothing."""
    if isinstance(message, membership.SetOpen):
        return "open" if message.open else "close"
    again = " again" if getattr(message, "again", False) else ""
    return "" if isinstance(message, _READS) else message.op.replace("_", " ") + again
