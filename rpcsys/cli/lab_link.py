"""A command's connection to the tracker of its lab, and questions to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rpcsys.cli import options
from rpcsys.errors import ConnectError, Unauthorized, UsageError
from rpcsys.link import credential
from rpcsys.link.address import parse_address, tracker_text
from rpcsys.link.credential import Credential
from rpcsys.link.link import Link
from rpcsys.link.targets import open_link
from rpcsys.wire.control import Ask

REPLY_S = 15.0  # for a change on a slow disk
_VARIABLES = ("RPCSYS_TRACKER", "RPCSYS_TRACKER_HOST", "TVM_TRACKER_HOST")


def credential_for(tracker: str | None) -> tuple[Credential, list[tuple[str, int]]]:
    """The credential for the lab at ``tracker``, or for the only one that there is; and where its tracker may be.

    Raises `Unauthorized`: there is none. Raises UsageError: there are several.
    """
    if tracker is None and not any(map(os.environ.get, _VARIABLES)):
        known = credential.held()
        if len(known) > 1:
            labs = ", ".join(f"{one.lab} ({one.trackers[0]})" for one in known)
            raise UsageError(f"there are credentials for several labs, {labs}: choose one with --tracker HOST:PORT")
        for one in known:
            return one, [parse_address(address) for address in one.trackers]
    address = options.tracker_address(tracker, options.PORT)
    found = credential.for_replicas(address)
    if found is None:
        where = tracker_text(address)
        how = "ask its keeper for an invitation, then type: rpcsys login"
        raise Unauthorized(f"there is no credential here for a lab at {where}: {how}")
    return found, [address]


@contextmanager
def lab_link(tracker: str | None) -> Iterator[Link]:
    """A connection to the lab at ``tracker``, as :func:`credential_for` chooses it. Raises as `Link.open` does."""
    held, addresses = credential_for(tracker)
    with open_first(addresses, held) as link:
        yield link


def open_first(addresses: list[tuple[str, int]], held: Credential, joining: Mapping[str, Any] | None = None) -> Link:
    """A link to the first of a tracker's addresses that answers. Raises what the last one raises."""
    for address in addresses[:-1]:
        try:
            return open_link(address, credential=held, joining=joining)
        except ConnectError:
            continue
    return open_link(addresses[-1], credential=held, joining=joining)


def ask(link: Link, message: Ask) -> dict[str, Any]:
    """Ask the tracker, and wait for the answer. Raises what `Link.ask` raises."""
    fields = message.to_json()
    del fields["id"]
    return link.ask(fields.pop("op"), timeout=REPLY_S, **fields)
