"""What the tracker sees of a board."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rpcsys.client import connect_tracker
from rpcsys.errors import ConnectError

EVERY_S = 0.25
Summary = dict[str, Any]


def row(summary: Summary, name: str) -> dict[str, Any] | None:
    """The tracker's row of the server that is called ``name``; None if there is none, or the tracker knows no names."""
    for server in summary.get("servers", []):
        own = server.get("labels", {}).get("name") or str(server.get("name", "")).rpartition(":")[0]
        if own == name:
            return dict(server)
    return None


def shown(summary: Summary, name: str, key: str) -> bool:
    """Whether the server is there: by name, or by key where the tracker is one that knows no names."""
    if "servers" in summary:
        return row(summary, name) is not None
    return any(str(server.get("key")) == f"server:{key}" for server in summary.get("server_info", []))


def state(summary: Summary, name: str) -> str:
    """In a few words: what the server is doing."""
    found = row(summary, name)
    if found is None:
        return "not in the tracker"
    if found.get("state") not in (None, "ok"):
        return ": ".join(filter(None, (str(found["state"]), str(found.get("reason") or ""))))
    running, slots = found.get("running", 0), found.get("slots", 0)
    if found.get("free"):
        return f"serves, {found['free']} of {slots} free"
    return f"serves, {running} of {slots} leased"


def wait(
    address: tuple[str, int], name: str, key: str, timeout_s: float, every_s: float = EVERY_S,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:  # fmt: skip
    """Whether the server shows in the tracker within ``timeout_s`` seconds, during which the tracker may be away."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            with connect_tracker(address) as tracker:
                if shown(tracker.summary(), name, key):
                    return True
        except ConnectError:
            pass  # it may come back
        if time.monotonic() > end:
            return False
        sleep(every_s)
