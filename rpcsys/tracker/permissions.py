"""What each message to a tracker with a lab takes, by the class of the message. One without an entry is refused.

Decisions only. A rule returns why a peer may not send a message, as a sentence for people; empty if it may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rpcsys.tracker import access
from rpcsys.tracker.access import EVERY_MODULE, TVM, Right
from rpcsys.tracker.entities import Peer, SlotOffer, Use
from rpcsys.tracker.lab_view import LabView, Member
from rpcsys.tracker.labels import wants_of_key
from rpcsys.tracker.records import Records
from rpcsys.wire import control, membership, results, tracker
from rpcsys.wire.keys import served_keys
from rpcsys.wire.pinned_keys import DEPLOY
from rpcsys.wire.tokens import HolderKind

Rule = Callable[[Records, LabView, Peer, Any], str]


def refusal(records: Records, peer: Peer, message: Any) -> str:
    """Why a peer may not send ``message``; empty if it may."""
    kind = type(message)
    lab = records.lab
    if lab is None:
        return ""
    if peer.member is None and lab.open:
        return "" if kind in _OF_OPEN_LAB else credential_for(lab)
    if peer.member is None and kind not in _OF_TVM:
        return credential_for(lab)
    if peer.member is not None and peer.member.kind is not HolderKind.PERSON and kind not in _OF_MACHINES:
        return f"{peer.member.name} is no person: a board or proxy may not do this"
    rule = TAKES.get(kind)
    return f"lab {lab.name} has no rule for this message" if rule is None else rule(records, lab, peer, message)


def credential_for(lab: LabView) -> str:
    """The refusal of one who has come in the clear."""
    return f"lab {lab.name} wants a credential for this: ask its keeper for an invitation, then type: rpcsys login"


def longest(records: Records, peer: Peer, key: str) -> float | None:
    """The longest lease of a device of ``key`` that a peer may have, in seconds; None without a limit."""
    if records.lab is None or (peer.member is None and records.lab.open):
        return None
    grant = records.lab.access.grant(_name(peer), key or "*")
    return None if grant is None or grant.session_s == math.inf else grant.session_s


def sees(records: Records, peer: Peer) -> bool:
    """Whether a peer may know who has the devices, and which keys and modules there are."""
    lab = records.lab
    if lab is None or (peer.member is None and lab.open):
        return True
    return Right.SEE in lab.access.rights(_name(peer))


def may_call(records: Records, peer: Peer, module: str) -> bool:
    """Whether a peer may call a deployed module."""
    lab = records.lab
    if lab is None or (peer.member is None and lab.open):
        return True
    return lab.access.may_call(_name(peer), module)


def deployable(records: Records, peer: Peer) -> tuple[str, ...]:
    """The modules that a peer may replace, as patterns."""
    lab = records.lab
    if lab is None or (peer.member is None and lab.open):
        return (EVERY_MODULE,)
    return lab.access.deployable(_name(peer))


def may_go_on(records: Records, use: Use) -> bool:
    """Whether a member may go on with what it was let in for; "" is whoever has no credential."""
    lab = records.lab
    if lab is None:
        return False
    if not use.member:
        return lab.open
    if use.member not in lab.people:
        return False
    if use.what == DEPLOY:
        return use.modules == lab.access.deployable(use.member)
    return all(lab.access.may_call(use.member, module) for module in use.modules)


class LeaseFields(NamedTuple):
    """What the messages about a lease have in a lab: to its server (`control.Taken`), and to its client."""

    taken: Mapping[str, bool]
    granted: Mapping[str, bool]


def of_lease(lab: LabView, peer: Peer, server: Peer, offer: SlotOffer) -> LeaseFields:
    """The fields of a lease that ``peer`` gets: what its session may load, and whether it may be in the clear."""
    if peer.member is None:  # of a network that the keeper allows, or in an open lab
        return LeaseFields({"plain": True, "code": lab.open or _code(lab, peer, offer.key)}, {"plain": True})
    # What a proxy itself offers is a TVM server: those that encrypt have links of their own.
    clear = server.member is None or server.member.kind is HolderKind.PROXY
    return LeaseFields({"code": _code(lab, peer, offer.key)}, {"plain": True} if clear else {})


def models_only(records: Records, peer: Peer, key: str) -> bool:
    """Whether a peer may load models in ONNX's format only."""
    lab = records.lab
    if lab is None or (peer.member is None and lab.open):
        return False
    grant = lab.access.grant(_name(peer), key or "*")
    return grant is not None and not grant.code


def _code(lab: LabView, peer: Peer, key: str) -> bool:
    grant = lab.access.grant(_name(peer), key)
    return grant is not None and grant.code


# Rules


def _free(records: Records, lab: LabView, peer: Peer, message: Any) -> str:
    return ""


def _never(records: Records, lab: LabView, peer: Peer, message: Any) -> str:
    return f"no message stops the tracker of lab {lab.name}: stop its process"


def _right(right: Right) -> Rule:
    def rule(records: Records, lab: LabView, peer: Peer, message: Any) -> str:
        return access.lacks(lab.access, _name(peer), right)

    return rule


def _people_or(right: Right, kind_of: Callable[[Records, Any], HolderKind | None]) -> Rule:
    """``right`` for boards and proxies, and all rights for people."""

    def rule(records: Records, lab: LabView, peer: Peer, message: Any) -> str:
        machine = kind_of(records, message) in (HolderKind.BOARD, HolderKind.PROXY)
        return access.lacks(lab.access, _name(peer), right if machine else Right.KEEPER)

    return rule


def _member(records: Records, lab: LabView, peer: Peer, message: Any) -> str:
    return "" if peer.member is not None else credential_for(lab)


def _leases(records: Records, lab: LabView, peer: Peer, message: tracker.TvmRequest | control.Request) -> str:
    name = _name(peer)
    key = message.key if isinstance(message, control.Request) else wants_of_key(message.key).key
    if not key and not _any_key(lab, name):
        return f"{name} may not lease a device of any key: name one ({_allowed(lab, name)})"
    if isinstance(message, tracker.TvmRequest) and models_only(records, peer, key or ""):
        return f"{name} may load models only, and no TVM session keeps to that: use rpcsys"
    count = message.count if isinstance(message, control.Request) else 1
    held = records.shares.held(name)
    return access.refusal(lab.access, name, key or "*", priority=message.priority, held=held, count=count)


def _any_key(lab: LabView, name: str) -> bool:
    keeper = Right.KEEPER in lab.access.rights(name)
    return keeper or any("*" in rule.keys for rule in lab.access.rules_of(name))


def _allowed(lab: LabView, name: str) -> str:
    keys = dict.fromkeys(pattern for rule in lab.access.rules_of(name) for pattern in rule.keys)
    return f"rules of lab {lab.name} allow: {', '.join(list(keys)[:8]) or 'nothing'}"


def _ends(records: Records, lab: LabView, peer: Peer, message: control.EndLease) -> str:
    lease = records.leases.get(message.lease)
    if lease is not None and lease.user == peer.who:
        return ""
    return access.lacks(lab.access, _name(peer), Right.END)


def _resolves(records: Records, lab: LabView, peer: Peer, message: control.Resolve) -> str:
    if not message.name or lab.access.may_call(_name(peer), message.name):
        return ""  # without a name, the answer has the modules that its member may call
    return f"{_name(peer)} may not call module {message.name} (rules of lab {lab.name}); {lab.access.ask}"


def _deploys(records: Records, lab: LabView, peer: Peer, message: control.AskAdmission) -> str:
    name = _name(peer)
    if lab.access.deployable(name):
        return ""
    rule = f"(no rule of lab {lab.name} names a module that {name} may replace)"
    return access.lacks(lab.access, name, Right.DEPLOY) or f"{name} may not deploy {rule}; {lab.access.ask}"


def _offers(keys: Callable[[Any], Iterable[str]]) -> Rule:
    def rule(records: Records, lab: LabView, peer: Peer, message: Any) -> str:
        member = peer.member
        if member is None:
            return ""  # a TVM server of an allowed network
        if member.kind is HolderKind.PERSON:
            return f"{member.name} is no board: rpcsys lab enrol makes the credential of one"
        other = next((key for key in keys(message) if key not in member.keys), None)
        return "" if other is None else _not_its_key(member, other)

    return rule


def _registers(records: Records, lab: LabView, peer: Peer, message: control.Register) -> str:
    board = _board(records, lab, peer, message)
    if board or peer.member is None:
        return board
    if message.name != peer.member.name:
        return f"this credential is that of board {peer.member.name}: start the server with --name {peer.member.name}"
    if message.key not in peer.member.keys:
        return _not_its_key(peer.member, message.key)
    return ""


def _board(records: Records, lab: LabView, peer: Peer, message: Any) -> str:
    if peer.member is not None and peer.member.kind is HolderKind.BOARD:
        return ""
    return f"{_name(peer)} is no board: rpcsys lab enrol makes the credential of one"


def _name(peer: Peer) -> str:
    return TVM if peer.member is None else peer.member.name


def _not_its_key(member: Member, key: str) -> str:
    enrolled = f"it was enrolled for: {', '.join(member.keys) or 'no key'}"
    how = f"rpcsys lab revoke {member.name}, then rpcsys lab enrol with --key {key}, gives it another credential"
    return f"{member.name} may not offer {key} ({enrolled}); {how}"


def _kind_asked(records: Records, message: membership.Invite | membership.Enrol) -> HolderKind | None:
    return message.kind


def _kind_of_revoked(records: Records, message: membership.Revoke | membership.RenewToken) -> HolderKind | None:
    return None if records.lab is None else records.lab.machines.get(message.name)


TAKES: Mapping[type, Rule] = {
    tracker.Ping: _free,
    control.Via: _free,
    control.Answer: _free,  # without a question it changes nothing
    tracker.Stop: _never,
    tracker.Put: _offers(lambda put: (put.key,)),
    tracker.GetPending: _free,  # the connection's own
    tracker.UpdateInfo: _offers(lambda info: served_keys(info.key)),
    tracker.TvmRequest: _leases,
    tracker.TvmSummary: _right(Right.SEE),
    control.Register: _registers,
    control.LeaseStarted: _board,
    control.LeaseEnded: _board,
    control.Health: _board,
    control.CanaryRun: _board,
    control.Deployed: _board,
    control.Request: _leases,
    control.Cancel: _member,  # the connection's own
    control.Release: _member,  # the member's own
    control.Renew: _member,  # the member's own
    control.EndLease: _ends,
    control.Drain: _right(Right.DRAIN),
    control.Enable: _right(Right.DRAIN),
    control.Summary: _right(Right.SEE),
    control.Why: _right(Right.SEE),
    control.History: _right(Right.SEE),
    control.Usage: _right(Right.SEE),
    control.Resolve: _resolves,
    control.AskAdmission: _deploys,
    results.FindResults: _member,
    results.KeepResults: _member,
    membership.WhoAmI: _member,
    membership.ReplaceToken: _member,  # its own
    membership.ListMembers: _right(Right.SEE),
    membership.Invite: _people_or(Right.ENROL, _kind_asked),
    membership.Enrol: _people_or(Right.ENROL, _kind_asked),
    membership.Revoke: _people_or(Right.ENROL, _kind_of_revoked),
    membership.RenewToken: _people_or(Right.ENROL, _kind_of_revoked),
    membership.Rotate: _right(Right.KEEPER),
    membership.SetOpen: _right(Right.KEEPER),
    membership.Audit: _right(Right.AUDIT),
    membership.ReadPage: _right(Right.SEE),
}
_OF_MEMBERS = frozenset(membership.MESSAGES)
#: What TVM's clients, servers and proxies send.
_OF_TVM = frozenset(
    (
        *(tracker.Ping, tracker.Put, tracker.GetPending, tracker.UpdateInfo, tracker.TvmRequest, tracker.TvmSummary),
        *(control.Via, tracker.Stop),
    )
)
#: What boards and proxies send.
_OF_MACHINES = frozenset(
    (
        *(tracker.Ping, tracker.Put, tracker.GetPending, tracker.UpdateInfo, control.Via, control.Answer),
        *(control.Register, control.LeaseStarted, control.LeaseEnded, control.Health, control.Deployed),
        control.CanaryRun,
        *(membership.WhoAmI, membership.ReplaceToken),
    )
)
#: What an open lab lets everybody send, as a tracker without a lab does.
_OF_OPEN_LAB = frozenset(TAKES) - _OF_MEMBERS - {tracker.Stop}
