"""Who may do what in a lab. Decisions only: :mod:`rpcsys.tracker.policy` reads the rules.

Rules allow, and add up: a member may do the most that any rule with its name, a group of it or a pattern allows.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address

#: The name, in rules, of TVM's clients without a credential from the networks of ``[tvm] from``.
TVM = "tvm"
EVERY_MEMBER = "*"
EVERY_MODULE = "*"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}").fullmatch
_SPECIAL = frozenset("*?[")
MAX_PRIORITY = 1000
MAX_AT_ONCE = 10_000
MAX_REMEMBERED = 65_536  # decisions of each kind
MAX_NAMED = 3  # keepers in a refusal

Network = IPv4Network | IPv6Network


class Right(str, enum.Enum):
    """What a member may do beside leasing devices and calling modules."""

    SEE = "see"  # the queue, and which keys exist
    DRAIN = "drain"
    END = "end"  # another member's leases
    ENROL = "enrol"  # boards and proxies
    DEPLOY = "deploy"  # the modules that its rules name
    AUDIT = "audit"
    KEEPER = "keeper"  # everything, members too


def is_name(text: object) -> bool:
    """Whether a member may have this name: letters, digits and ``._@+-``. ``tvm`` is taken."""
    return isinstance(text, str) and _NAME(text) is not None and text != TVM


@dataclass(frozen=True)
class Rule:
    """One ``[[allow]]``. ``who``: members, groups, patterns; ``session_s``: the longest lease, ``at_once``: leases."""

    who: tuple[str, ...]
    keys: tuple[str, ...] = ()
    priority: int = 1
    session_s: float = math.inf
    at_once: float = math.inf
    code: bool = True  # False: models in ONNX's format only
    rights: frozenset[Right] = frozenset()
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grant:
    """What a member may do with the devices of a key; fields as those of :class:`Rule`."""

    priority: int
    session_s: float
    at_once: float
    code: bool


_ALL = Grant(MAX_PRIORITY, math.inf, math.inf, True)


@dataclass(frozen=True)
class Oidc:
    """Whose ID tokens make members: those of ``issuer`` for ``client_id``; ``lasts_s``: for how many seconds.

    ``name_claim``, ``groups_claim``: what in them is the member's name, and its groups ("": nothing).
    """

    issuer: str
    client_id: str
    name_claim: str = "email"
    groups_claim: str = ""
    lasts_s: float = 12 * 3600.0


@dataclass(frozen=True)
class Access:
    """The rules of a lab. ``tvm_from``: networks of TVM's clients; ``page_open``: networks that see the page."""

    lab: str = "this lab"
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)  # name -> names and patterns of members
    rules: tuple[Rule, ...] = ()
    tvm_from: tuple[Network, ...] = ()
    page_open: tuple[Network, ...] = ()
    oidc: Oidc | None = None

    @cached_property
    def _by_name(self) -> dict[str, list[Rule]]:
        """The rules of each name and pattern."""
        found: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for name in self._names(rule):
                found.setdefault(name, []).append(rule)
        return found

    @cached_property
    def _patterns(self) -> tuple[str, ...]:
        return tuple(name for name in self._by_name if not _SPECIAL.isdisjoint(name))

    @cached_property
    def ask(self) -> str:
        """What one does who needs more than the rules allow: ask those whom the rules name as keepers."""
        names = {name for rule in self.rules if Right.KEEPER in rule.rights for name in self._names(rule)}
        named = sorted(filter(is_name, names))[:MAX_NAMED]
        return f"ask {' or '.join(named) or 'a keeper'}"

    def _names(self, rule: Rule) -> set[str]:
        return {name for one in rule.who for name in self.groups.get(one, (one,))}

    # Remembered: every request asks again, and a lab may have 10,000 rules.

    @cached_property
    def rules_of(self) -> Callable[[str], tuple[Rule, ...]]:
        """The rules for a member, by name; those for TVM's clients without a credential are under `TVM`."""
        return lru_cache(MAX_REMEMBERED)(self._rules_of)

    @cached_property
    def rights(self) -> Callable[[str], frozenset[Right]]:
        """The rights of a member, by name. A keeper has all."""
        return lru_cache(MAX_REMEMBERED)(self._rights)

    @cached_property
    def grant(self) -> Callable[[str, str], Grant | None]:
        """What a member, by name, may do with the devices of a key; None: nothing."""
        return lru_cache(MAX_REMEMBERED)(self._grant)

    def _rules_of(self, member: str) -> tuple[Rule, ...]:
        names = [member]
        if member != TVM:
            names += [pattern for pattern in self._patterns if fnmatchcase(member, pattern)]
        return tuple(rule for name in names for rule in self._by_name.get(name, ()))

    def _rights(self, member: str) -> frozenset[Right]:
        held = frozenset(right for rule in self.rules_of(member) for right in rule.rights)
        return frozenset(Right) if Right.KEEPER in held else held

    def _grant(self, member: str, key: str) -> Grant | None:
        if Right.KEEPER in self.rights(member):
            return _ALL
        rules = [rule for rule in self.rules_of(member) if _any_matches(rule.keys, key)]
        if not rules:
            return None
        return Grant(
            max(rule.priority for rule in rules),
            max(rule.session_s for rule in rules),
            max(rule.at_once for rule in rules),
            any(rule.code for rule in rules),
        )

    def may_call(self, member: str, module: str) -> bool:
        """Whether a member may call a deployed module."""
        if Right.KEEPER in self.rights(member):
            return True
        return any(_any_matches(rule.modules, module) for rule in self.rules_of(member))

    def deployable(self, member: str) -> tuple[str, ...]:
        """The modules that a member may replace, as patterns: with the right to deploy, those that it may call."""
        held = self.rights(member)
        if Right.KEEPER in held:
            return (EVERY_MODULE,)
        named = {pattern for rule in self.rules_of(member) for pattern in rule.modules}
        return tuple(sorted(named)) if Right.DEPLOY in held else ()

    def keepers(self, members: Collection[str]) -> list[str]:
        """Those of ``members`` who have all rights, sorted: whom a refused one asks."""
        return sorted(member for member in members if Right.KEEPER in self.rights(member))

    def admits_tvm(self, host: str) -> bool:
        """Whether TVM's clients and servers at an address come in without a credential."""
        return _within(host, self.tvm_from)

    def shows_page(self, host: str) -> bool:
        """Whether an address sees the page and metrics without a token."""
        return _within(host, self.page_open)


# Refusals


def refusal(access: Access, member: str, key: str, *, priority: float = 1, held: int = 0, count: int = 1) -> str:
    """Why a member may not lease ``count`` devices of ``key``; empty if it may.

    ``held``: the devices that the member leases already. A sentence for people, with what the rules allow.
    """
    grant = access.grant(member, key)
    who = f"{member} may not lease {key}"
    if grant is None:
        keys = list(dict.fromkeys(pattern for rule in access.rules_of(member) for pattern in rule.keys))
        return f"{who} (rules of lab {access.lab} allow: {', '.join(keys[:8]) or 'nothing'}); {access.ask}"
    if priority > grant.priority:
        return f"{who} with priority {priority:g}: {grant.priority} at most; {access.ask}"
    if held + count > grant.at_once:
        return f"{who}: {grant.at_once:g} leases at once, and has {held}; end one, or {access.ask}"
    return ""


def lacks(access: Access, member: str, right: Right) -> str:
    """Why a member may not do what takes ``right``; empty if it may."""
    if right in access.rights(member):
        return ""
    return (
        f"{member} may not do this (it takes the right {right.value!r} in the rules of lab {access.lab}); {access.ask}"
    )


@lru_cache(maxsize=4096)
def _any_matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _within(host: str, networks: tuple[Network, ...]) -> bool:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)
