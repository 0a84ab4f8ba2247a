"""A lab with a board behind a recording relay, for tests of somebody in the middle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rpcsys
from rpcsys import errors
from rpcsys.client.connection import open_session
from rpcsys.link import credential
from rpcsys.link.link import Link
from tests.live.daemons import START_S, Daemons, free_port
from tests.live.labs import LabOnDisk
from tests.live.recording_relay import Recorded, nothing, recording

KEY, SLOTS = "rpi4", 3
OURS = "-session=rpcsys/1"


class Site:
    """A lab whose keeper is this process, with one board behind the relay ``line``."""

    def __init__(self, lab: LabOnDisk, daemons: Daemons, line: Recorded) -> None:
        self.lab, self.daemons, self.line = lab, daemons, line
        self.tracker = lab.tracker(daemons, "--state-dir", str(lab.path.parent / "state"))
        own, port = self.credential_file(lab.board("b1", (KEY,))), free_port()
        more = ("--name", "b1", "--slots", str(SLOTS), "--lab", own, "--custom-addr", line.where)
        self.board = daemons.server(KEY, *more, tracker=self.tracker, offers=SLOTS, port=port)
        self.address = line.server = self.board.address

    def credential_file(self, held: credential.Credential) -> str:
        path = self.lab.path.parent / f"{held.member}.json"
        credential.write(str(path), held)
        return str(path)

    @contextlib.contextmanager
    def lease(self) -> Iterator[dict[str, Any]]:
        """A lease of the board, of a client that blames nobody."""
        with Link.open(self.tracker.address, credential=self.lab.keeper, timeout=20) as link:
            yield link.ask("request", timeout=START_S, key=KEY)["leases"][0]

    def connect(self, lease: dict[str, Any], match_key: str = "") -> rpcsys.Session:
        return open_session((lease["host"], lease["port"]), match_key or lease["matchkey"], timeout=20)

    def refuses(self, *kinds: type[Exception]) -> errors.RpcsysError:
        """The error of a session that is tried through the line as it is now."""
        with self.lease() as lease, pytest.raises(errors.RpcsysError) as refused:
            self.connect(lease).close()
        assert isinstance(refused.value, kinds or errors.RpcsysError), refused.value
        assert lease["matchkey"].rpartition("-")[2] not in str(refused.value)
        return refused.value


@contextlib.contextmanager
def middle_site(folder: Path) -> Iterator[Site]:
    """A lab whose keeper is this process."""
    daemons = Daemons(folder)
    with recording() as line:
        lab = LabOnDisk(folder)
        site = Site(lab, daemons, line)
        own = site.credential_file(lab.keeper)
        credential.use(own)
        yield site
        daemons.stop()
        credential.use_no_more(own)


def check_unharmed(site: Site) -> None:
    """The board serves, and no fault is counted on it."""
    site.line.change, site.line.server = nothing, site.address
    with rpcsys.connect_tracker(site.tracker.address) as tracker:
        with tracker.request(KEY, wait_timeout=START_S) as session:
            assert session.get_function("testing.echo")("right") == "right"
        (row,) = tracker.summary()["servers"]
        assert (row["state"], row["reason"]) == ("ok", "")
        assert sum(row["faults"] for row in tracker.usage()) == 0
    assert "Traceback" not in site.board.stderr() + site.tracker.stderr()


def records(data: bytes) -> list[tuple[int, int]]:
    """The kinds and sizes of TLS's records."""
    found = []
    while data:
        size = int.from_bytes(data[3:5], "big")
        assert data[1:2] == b"\x03", data[:50]
        found.append((data[0], size))
        data = data[5 + size :]
    return found


def behind_the_greeting(passed: bytes) -> bytes:
    """What a client has said behind its greeting in the clear."""
    return passed[8 + int.from_bytes(passed[4:8], "little") :] if passed[:1] == b"\x71" else passed
