"""A lab's tracker in this process: who is let in, and who is made to connect again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rpcsys import errors, logs
from rpcsys.daemon.acceptor import Acceptor
from rpcsys.link.credential import Credential
from rpcsys.link.link import Link
from rpcsys.serve import bind
from rpcsys.tracker import lab_folder
from rpcsys.tracker.access import Right
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.members import Members
from rpcsys.tracker.service import TrackerService
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind, Token
from tests.live.daemons import wait_until

TIMEOUT_S = 20


@pytest.fixture(autouse=True)
def _logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's log is a daemon's until the test ends."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.NOTSET)
    logs.setup("tracker")


class OfTests:
    """A tracker that runs, with its lab and the lab's keeper."""

    def __init__(self, place: Path) -> None:
        listener = bind("127.0.0.1", 0, 1)
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        self.keeper = lab_folder.create(place, "basement", [where], "mo")
        self.service = TrackerService(TrackerConfig(lab=str(place)))
        self.acceptor = Acceptor(listener, self.service.accept)

    async def link(self, credential: Credential) -> Link:
        return await asyncio.to_thread(Link.open, credential.trackers[0], credential=credential, timeout=TIMEOUT_S)


@contextlib.asynccontextmanager
async def running(place: Path) -> AsyncIterator[OfTests]:
    lab = OfTests(place)
    try:
        yield lab
    finally:
        lab.acceptor.close()
        lab.service.close()


def test_a_member_is_known_to_the_state_and_a_stranger_no_longer(tmp_path: Path) -> None:
    async def lives() -> None:
        async with running(tmp_path / "lab") as lab:
            with await lab.link(lab.keeper) as link:
                assert link.tracker["member"] == "mo"
                (peer,) = lab.service.state.records.peers.values()
                assert peer.member is not None
                assert peer.member.name == "mo"
                assert all(connection.known for connection in lab.service.connections.values())
                assert lab.service.lab is not None
                assert lab.service.lab.counts.handshakes["done"] == 1

    asyncio.run(lives())


def test_one_without_a_credential_is_counted_and_dropped(tmp_path: Path) -> None:
    async def lives() -> None:
        async with running(tmp_path / "lab") as lab:
            unknown = lab.keeper._replace(token=lab.keeper.token[:-4] + "AAAA")
            with pytest.raises(errors.Unauthorized, match="ask for an invitation"):
                await lab.link(unknown)
            assert lab.service.lab is not None
            await asyncio.to_thread(wait_until, lambda: not lab.service.connections, TIMEOUT_S, "its connection's end")
            assert lab.service.lab.counts.unauthorized == {"credential": 1}

    asyncio.run(lives())


def test_a_newcomer_has_the_rights_of_its_groups_at_once(tmp_path: Path) -> None:
    async def lives() -> None:
        async with running(tmp_path / "lab") as lab:
            with contextlib.closing(Members(tmp_path / "lab")) as known:
                number, secret = known.invite("bo", HolderKind.PERSON, time.time(), groups=["keepers"])
            joining = {"invitation": f"{number}.{secret}", "hash": tokens.hash_of(tokens.new_secret())}
            where = lab.keeper.trackers[0]
            opening = functools.partial(Link.open, where, credential=lab.keeper, joining=joining, timeout=TIMEOUT_S)
            with await asyncio.to_thread(opening):
                lab_of_state = lab.service.state.records.lab
                assert lab_of_state is not None
                assert Right.KEEPER in lab_of_state.access.rights("bo")
                assert "bo" in lab_of_state.people

    asyncio.run(lives())


def test_boards_connect_again_after_a_rotation_and_people_stay(tmp_path: Path) -> None:
    async def lives() -> None:
        async with running(tmp_path / "lab") as lab:
            with await lab.link(lab.keeper) as desk:
                token = Token(HolderKind.BOARD, "", tokens.new_secret())
                told = await asyncio.to_thread(
                    desk.ask, "enrol", timeout=TIMEOUT_S, name="rpi4-3", kind="b", hash=token.hash, keys=["rpi4"]
                )
                board = lab.keeper._replace(member="rpi4-3", token=token._replace(id=told["token"]).text)
                with await lab.link(board):
                    assert len(lab.service.connections) == 2
                    await asyncio.to_thread(desk.ask, "rotate", timeout=TIMEOUT_S)
                    await asyncio.to_thread(
                        wait_until, lambda: len(lab.service.connections) == 1, TIMEOUT_S, "the board's end"
                    )
                (peer,) = lab.service.state.records.peers.values()
                assert peer.member is not None
                assert peer.member.name == "mo"

    asyncio.run(lives())
