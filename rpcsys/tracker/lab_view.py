"""What the tracker's state knows of its lab and of a member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rpcsys.tracker.access import Access
from rpcsys.wire.tokens import HolderKind


@dataclass(frozen=True)
class Member:
    """Who holds a token. ``keys``: those that a board may offer; ``expires``, ``used``, ``revoked``: None for never.

    ``renew``: it is to make itself a new token. ``subject``: the issuer and whom it calls so, of one who signs in by
    OIDC; None for one that a keeper has let in.
    """

    name: str
    kind: HolderKind
    token: str  # its ID
    hash: str
    next_hash: str | None  # of the token that replaces it once it was used
    keys: tuple[str, ...]
    groups: tuple[str, ...]
    joined: float
    expires: float | None
    used: float | None
    revoked: float | None
    renew: bool = False
    subject: str | None = None

    def valid(self, now: float) -> bool:
        """Whether the member may still come in."""
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True)
class LabView:
    """A lab's rules, the pins of its tracker, which members are boards and proxies, and which are people."""

    access: Access
    address: str  # of the tracker, for people
    pins: tuple[str, ...]
    open: bool = False  # whether peers without a credential are served, too
    machines: Mapping[str, HolderKind] = field(default_factory=dict)
    people: frozenset[str] = frozenset()  # those whose membership lasts

    @property
    def name(self) -> str:
        return self.access.lab
