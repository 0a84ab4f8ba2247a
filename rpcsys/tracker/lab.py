"""The lab of a running tracker: its keys, members and rules, and whom a connection speaks for.

What waits for a disk is done in a thread of its own, one thing after the other; the loop reads what that has left.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from rpcsys.errors import ConfigError, Unauthorized
from rpcsys.link import tls
from rpcsys.tracker import policy
from rpcsys.tracker.access import Access
from rpcsys.tracker.audit import FIRST, RECOVER, AuditEntry, AuditLog
from rpcsys.tracker.audit_trail import AuditTrail
from rpcsys.tracker.lab_folder import LabFolder
from rpcsys.tracker.lab_view import LabView, Member
from rpcsys.tracker.members import Members
from rpcsys.tracker.membership import Membership
from rpcsys.wire import tokens
from rpcsys.wire.control import Hello
from rpcsys.wire.membership import EVERYONE
from rpcsys.wire.tokens import HolderKind

log = logging.getLogger(__name__)
Result = TypeVar("Result")
HEAD_LOGGED_S = 3600.0  # between two logs of the audit log's newest hash


class LabChanges(NamedTuple):
    """What was found in the lab's files. ``view``: the state is to know of it; ``reconnect``: members whose boards and
    proxies are to connect again, so that they learn of new pins or make new tokens (`EVERYONE`: all).
    """

    view: bool
    reconnect: frozenset[str]


class RunningLab:
    """An open lab's folder. Raises `ConfigError`: it cannot be used, or its rules have a mistake."""

    def __init__(self, path: str | Path) -> None:
        self.folder = LabFolder(path)
        self.members = Members(path)
        self.audit = AuditLog(path)
        self.membership = Membership(self.folder, self.members, self.audit)
        self.access = self._rules()
        self.context = tls.server_context(self.folder.identity())
        self._read_from = self._stamp(), self._groups()  # what the rules depend on
        self._seen = self._read_from[0]
        self._thread = ThreadPoolExecutor(1, "rpcsys-lab")
        self.view = self.look()
        self.trail = AuditTrail()
        self._head_logged_at = float("-inf")
        self._came_in: dict[str, tuple[str, float]] = {}

    def look(self) -> LabView:
        """What the state is to know now."""
        settings, known = self.folder.settings, self.members.by_name.values()
        machines = {member.name: member.kind for member in known if member.kind is not HolderKind.PERSON}
        now, person = time.time(), HolderKind.PERSON
        people = frozenset(member.name for member in known if member.kind is person and member.valid(now))
        return LabView(self.access, settings.addresses[0], settings.pins, settings.open, machines, people)

    def tunnel(self) -> tls.Tunnel:
        """The tracker's end of a new TLS connection."""
        return tls.Tunnel(self.context, server=True)

    def look_again(self) -> Future[LabChanges]:
        """Take what has changed in the files, note who came in, and write what is to be audited."""
        return self._thread.submit(self._refresh, self._uses(), self.trail.take())

    def _uses(self) -> dict[str, tuple[str, float]]:
        """Who came in since the last call."""
        uses, self._came_in = self._came_in, {}
        return uses

    def run(self, work: Callable[[], Result]) -> Future[Result]:
        """Do ``work`` in the lab's thread."""
        return self._thread.submit(work)

    def close(self) -> None:
        """Wait for the work that has begun, and close the files."""
        self._thread.submit(self._record, self.trail.take())
        self._thread.submit(self._note_uses, self._uses())
        self._thread.shutdown()
        self.members.close()
        self.audit.close()

    # Who a peer is

    def holder(self, hello: Hello, now: float) -> Member:
        """The member whose token a hello has. Raises `Unauthorized`: there is none, or nobody has it."""
        if hello.token is None:
            raise Unauthorized(self.wanted)
        return self.bearer(hello.token, now)

    def bearer(self, text: str, now: float) -> Member:
        """The member whose token ``text`` is. Raises `Unauthorized`: nobody has it."""
        try:
            token = tokens.parse(text)
            member = self.members.authenticate(token, now)
        except (ConfigError, Unauthorized) as error:
            again = f", or sign in again: rpcsys login {self.folder.settings.addresses[0]}" if self.access.oidc else ""
            raise Unauthorized(f"{error}{again}") from None
        if self._came_in.get(member.name, ("",))[0] != member.next_hash:  # whose use ends the old token
            self._came_in[member.name] = (token.hash, now)
        return member

    def gone(self, members: Iterable[Member], now: float) -> list[str]:
        """The names of those of ``members`` whose membership has ended."""
        known = self.members.by_name
        return [
            member.name
            for member in members
            if not ((one := known.get(member.name)) and one.valid(now) and one.token == member.token)
        ]

    def ended(self, names: Iterable[str], now: float) -> list[str]:
        """Those of ``names`` that are of members whose membership has ended."""
        known = self.members.by_name
        return [name for name in names if (one := known.get(name)) and not one.valid(now)]

    def refusal(self, address: str) -> str:
        """Why a peer at an address is not served without a credential; empty if it is."""
        if self.folder.settings.open or self.access.admits_tvm(address):
            return ""
        return (
            "this lab wants credentials: type rpcsys login and rpcsys connect here, and use tracker 127.0.0.1:9190; "
            f"or have its keeper add {address} to [tvm] from"
        )

    @property
    def wanted(self) -> str:
        """The refusal of our own programs without a credential."""
        what = "an invitation, or the lab's line to sign in with" if self.access.oidc else "an invitation"
        address = self.folder.settings.addresses[0]
        how = f"ask its keeper for {what}, then type: rpcsys login (a server, a proxy: give its file with --lab)"
        return f"the lab at {address} wants credentials: {how}"

    # Files; in the lab's thread

    def _refresh(self, uses: Mapping[str, tuple[str, float]], audited: list[AuditEntry]) -> LabChanges:
        self._record(audited)
        self._note_uses(uses)
        held = {member.token for member in self.members.by_name.values()}
        if self.members.refresh():  # by a command on this host
            new = [member.name for member in self.members.by_name.values() if member.token not in held]
            self._record([AuditEntry(time.time(), "", "", RECOVER, name) for name in new])
        reconnect: set[str] = set()
        while self.membership.changes:
            change = self.membership.changes.popleft()
            if change.pins:
                self.context = tls.server_context(self.folder.identity())
                reconnect.add(EVERYONE)
            if change.renewed:
                reconnect.add(change.renewed)
        read_from = self._settled(), self._groups()
        if read_from != self._read_from:
            self._read_from = read_from
            try:
                self.access = self._rules()
                self._record([AuditEntry(time.time(), "", "", "policy", self._hash_of_rules())])
            except ConfigError as error:
                log.warning("%s; the rules stay as they were", error)
                self._record([AuditEntry(time.time(), "", "", "policy", self._hash_of_rules(), str(error))])
        before, self.view = self.view, self.look()
        if self.view.open != before.open:  # servers learn whether to serve modules in the clear
            reconnect.add(EVERYONE)
        return LabChanges(self.view != before, frozenset(reconnect))

    def _record(self, entries: list[AuditEntry]) -> None:
        """Write to the audit log, and its newest hash to the tracker's own once an hour."""
        try:
            self.audit.write(entries)
        except OSError as error:
            log.warning("%d entries are not in the audit log: %s", len(entries), error.strerror)
        if self.audit.head != FIRST and time.monotonic() - self._head_logged_at > HEAD_LOGGED_S:
            self._head_logged_at = time.monotonic()
            log.info("the newest hash of the audit log of lab %s is %s", self.folder.settings.name, self.audit.head)

    def _note_uses(self, uses: Mapping[str, tuple[str, float]]) -> None:
        try:
            self.members.note_uses(uses)
        except ConfigError as error:
            log.warning("%s", error)

    def _rules(self) -> Access:
        path = self.folder.policy_path
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(policy.MAX_CHARACTERS + 1)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        return policy.parse(text, self.folder.settings.name, self._groups())

    def _hash_of_rules(self) -> str:
        with contextlib.suppress(OSError):
            return f"sha256:{hashlib.sha256(self.folder.policy_path.read_bytes()).hexdigest()}"
        return "unreadable"

    def _groups(self) -> Mapping[str, tuple[str, ...]]:
        return {member.name: member.groups for member in self.members.by_name.values()}

    def _settled(self) -> tuple[int, int, int]:
        """The stamp of the rules' file, the new one at its second look: whoever writes it may be in the middle."""
        before, self._seen = self._seen, self._stamp()
        return self._seen if self._seen == before else self._read_from[0]

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self.folder.policy_path.stat()
        except OSError:
            return (0, 0, 0)
        return found.st_mtime_ns, found.st_size, found.st_ino
