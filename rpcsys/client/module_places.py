"""Where deployed modules are called, and where one deploys, by a tracker's word.

In a lab the tracker gives a pinned match key for each place, good for some minutes: whoever connects asks each time.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple

from rpcsys.client import answers
from rpcsys.client.waiting import REPLY_S
from rpcsys.errors import NoTls
from rpcsys.link.link import Link
from rpcsys.wire import checks
from rpcsys.wire.pinned_keys import DEPLOY, parse, public_name


class ModulePlaceKey(NamedTuple):
    """The address of a server with modules, and what its client says there."""

    host: str
    port: int
    key: str  # a pinned match key in a lab; else it addresses the server at its proxy, or is empty

    @property
    def where(self) -> str:
        """The identity of the server, without a secret: those behind a proxy have one address."""
        return f"{self.host}:{self.port} {public_name(self.key)}".rstrip()


def serving(link: Link, name: str) -> List[ModulePlaceKey]:
    """The servers of a deployed module, the least busy first. Raises `UnknownKey`, `NoTls`: none of them encrypts."""
    answer = link.ask("resolve", timeout=REPLY_S, name=name, admit=True)
    rows: List[Dict[str, Any]] = answers.from_tracker(answers.MODULES, answer.get("modules"), "modules")
    answers.from_tracker(answers.RIGHTS, rows, "modules")
    usable = [row for row in rows if _says(link, row)]
    if rows and not usable:
        raise _none_encrypts(str(rows[0]["server"]))
    return [_key(row) for row in usable]


def deploying(link: Link, server: str) -> ModulePlaceKey:
    """Where one deploys on a server, by its name. Raises `TrackerError`: it is unknown, or one may not; `NoTls`."""
    answer = link.ask("admission", timeout=REPLY_S, what=DEPLOY, server=server)
    row: Dict[str, Any] = answers.from_tracker(answers.place, answer, "admission")
    if not _says(link, row):
        raise _none_encrypts(server)
    return _key(row)


def _key(row: Dict[str, Any]) -> ModulePlaceKey:
    return ModulePlaceKey(row["host"], checks.port(row["port"], "port"), row.get("matchkey") or row["key"])


def _says(link: Link, row: Dict[str, Any]) -> bool:
    """Whether the client may connect: a lab's member says nothing in the clear, unless the tracker lets it."""
    found = parse(row.get("matchkey") or "")
    return link.credential is None or row.get("plain") is True or (found is not None and found.secret != "")


def _none_encrypts(server: str) -> NoTls:
    return NoTls(
        f"the server {server} encrypts no connections to modules, and the lab's rules want it: nothing was sent. Its "
        "keeper installs the tracker's version on it, and starts it with --lab FILE and --deploy DIR"
    )
