"""What a link is made to: one address, or the replicas of a tracker. For one, nothing else is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple, Union

from rpcsys.link.address import Addresses
from rpcsys.link.link import Link

if TYPE_CHECKING:
    from rpcsys.link.trackers import Trackers

Target = Union[Tuple[str, int], "Trackers"]


def shared(address: Tuple[str, int]) -> Target:
    """The target of several links of one owner: of `Addresses`, what the links know in common."""
    if not isinstance(address, Addresses):
        return address
    from rpcsys.link.trackers import Trackers

    return Trackers(address.all)


def link_to(target: Target, **options: Any) -> Link:
    """A link to an address, to `Addresses`, or to what is `shared`; options and errors as those of `Link`."""
    made: Link = _kind(target)(target, **options)
    return made


def open_link(target: Target, **options: Any) -> Link:
    """As `link_to`, and wait as `Link.open` does."""
    made: Link = _kind(target).open(target, **options)
    return made


def _kind(target: Target) -> Any:
    if isinstance(target, tuple) and not isinstance(target, Addresses):
        return Link
    from rpcsys.link.trackers import LeaderLink

    return LeaderLink
