"""A closed lab of old and new machines: each Python from 3.8 up, and OpenSSL 1.1.1, 3.0, 3.5 and later.

The oldest and the newest OpenSSL serve, and are served by, all of them.

OpenSSL's versions are those of Debian's releases, on emulated boards. The tracker is this machine's.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rpcsys.link import credential, identity, tls
from rpcsys.link.link import Link
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind, Token
from tests.combinations import usual
from tests.live.daemons import Daemons, wait_until
from tests.live.emulated import MACHINES
from tests.live.labs import LabOnDisk
from tests.native import bare, lay_out
from tests.pythons import pythons
from tests.test_device_tier import SERVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EMULATED = {**MACHINES, "new": dataclasses.replace(MACHINES["aarch64"], suite="trixie")}
LEAST = {"old": (1, 1, 1), "aarch64": (3, 0), "armhf": (3, 0), "new": (3, 5), "riscv64": (3, 5)}
SERVERS = [*LEAST, *pythons()]
CLIENTS = [*SERVERS, *(["pypy"] if shutil.which("pypy3") else [])]
ENDS = {"old", "new"}
START_S = 300.0  # an emulated machine takes 20 s, on a busy one many times that

# A device function of the boards, whose sessions are killed.
DIE = """
import os
from rpcsys.server.session.registry import register

@register("test.die")
def die():
    os.kill(os.getpid(), 9)
"""

JOIN = """
import sys
from rpcsys.link import credential
from rpcsys.link.credential import Credential
from rpcsys.link.link import Link
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind, Token
line = tokens.parse_invitation(sys.argv[1])
secret = tokens.new_secret()
stranger = Credential("any", "", line.addresses, line.pins, "")
joining = {"invitation": line.id + "." + line.secret, "hash": tokens.hash_of(secret)}
with Link.open(line.addresses[0], credential=stranger, joining=joining, timeout=60) as link:
    told = link.tracker
token = Token(HolderKind(told["kind"]), line.id, secret).text
credential.write(sys.argv[2], Credential(told["lab"], told["member"], line.addresses, line.pins, token))
"""

USE = """
import array, json, os, ssl, sys
os.environ["RPCSYS_LAB"] = sys.argv[1]
import rpcsys
from rpcsys.errors import SessionLost, SessionTimeout
said, wait = {}, {"wait_timeout": 60}
with rpcsys.connect_tracker(sys.argv[2], timeout=60) as tracker:
    with tracker.request(sys.argv[3], **wait) as session:
        echo = session.get_function("testing.echo")
        large = memoryview(bytearray(range(256)) * (3 << 12))
        session.upload(b"of the board" * 9999, "file.txt")
        said["arrays"] = bytes(echo(large).data) == bytes(large)
        said["items"] = echo(memoryview(array.array("f", [1, 2, 3]))).tolist()
        said["many"] = [future.result() for future in [echo.submit(i) for i in range(50)]] == list(range(50))
        said["file"] = bytes(session.download("file.txt")) == b"of the board" * 9999
        try:
            session.get_function("test.die")()
        except SessionLost as error:
            said["killed"] = str(error)
with rpcsys.connect_tracker(sys.argv[2], timeout=60) as tracker:
    with tracker.request(sys.argv[3], session_timeout=1, **wait) as session:
        try:
            session.get_function("testing.sleep")(60.0)
        except SessionTimeout as error:
            said["over"] = str(error)
print(json.dumps(said))
"""

MAKE = """
import ssl
from rpcsys.link import identity
own = identity.new()
print(own.pin, identity.multiplied(own.seed) == identity.public_key(own.seed), *ssl.OPENSSL_VERSION_INFO[:3])
print(own.pem())
"""


@cache
def python(end: str) -> str:
    if end == "pypy":
        return "pypy3"
    return str(EMULATED[end].python) if end in EMULATED else pythons()[end]


class Site(NamedTuple):
    """A closed lab, its tracker's address, and the device tier's files."""

    lab: LabOnDisk
    where: str
    tree: Path
    daemons: Daemons
    boards: dict[str, str]  # the keys of those that run

    def keeper(self, op: str, **fields: object) -> dict[str, Any]:
        """The answer to a keeper."""
        with Link.open(self.where, credential=self.lab.keeper) as link:
            return link.ask(op, timeout=30, **fields)

    def renewed(self, name: str) -> bool:
        """Whether a member has used its new token."""
        rows = self.keeper("members", after="", limit=1000)["members"]
        return not next(row["renew"] for row in rows if row["name"] == name)

    def board(self, end: str) -> str:
        """Start a server on a machine; its key. It makes itself a new token at once."""
        name, secret = f"board-{end}-{len(self.daemons.started)}", tokens.new_secret()  # a rerun has a name of its own
        fields = {"name": name, "kind": "b", "keys": [name], "hash": tokens.hash_of(secret)}
        token = Token(HolderKind.BOARD, self.keeper("enrol", **fields)["token"], secret).text
        self.keeper("renew_token", name=name)
        file = self.tree / f"{name}.json"
        credential.write(str(file), self.lab.keeper._replace(member=name, token=token))
        flags = ("--host", "127.0.0.1", "--port", "0", "--key", name, "--lab", str(file), "--tracker", self.where)
        command = [python(end), "-I", "-S", "-c", SERVE, str(self.tree), *flags]
        self.daemons.launch(name, [*command, "--session-user", "none", "--import", "dying"]).await_ready_line(START_S)
        wait_until(lambda: self.renewed(name), START_S, f"{name} has a new token")
        assert credential.read(str(file)).token != token
        return name

    def member(self, end: str) -> str:
        """The file of a member who joined on a machine, by its own name there."""
        file = self.tree / f"desk-{end}.json"
        if not file.exists():
            invited = {"name": file.stem, "kind": "p", "keys": [], "groups": [], "lasts_s": None, "again": True}
            bare(self.tree, JOIN, self.keeper("invite", **invited)["invitation"], file, python=python(end))
            self.keeper("renew_token", name=file.stem)
        return str(file)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, module_daemons: Callable[[], Daemons]) -> Site:
    folder, daemons = tmp_path_factory.mktemp("site"), module_daemons()
    tree = lay_out(folder / "tree")
    (tree / "dying.py").write_text(DIE)
    lab = LabOnDisk(folder)
    return Site(lab, lab.tracker(daemons).where, tree, daemons, {})


@pytest.fixture
def board(request: pytest.FixtureRequest, site: Site) -> str:
    if request.param not in site.boards:
        site.boards[request.param] = site.board(request.param)
    return site.boards[request.param]


def pairs() -> list[Any]:
    """The oldest and the newest with all. Each serves the oldest, and the newest all; the others are of releases."""
    ends = [(board, desk) for board in SERVERS for desk in CLIENTS if ENDS & {board, desk}]
    return usual(ends, lambda pair: pair[1] == "old" or pair[0] == "new")


@pytest.mark.parametrize(("board", "desk"), pairs(), indirect=["board"])
def test_each_serves_the_oldest_and_the_newest(site: Site, board: str, desk: str) -> None:
    """Arrays, files and last words, over an encrypted lease; the member joins there, and makes itself a new token."""
    file = site.member(desk)
    said = json.loads(bare(site.tree, USE, file, site.where, board, python=python(desk)))
    assert "its process was ended by SIGKILL" in said.pop("killed")
    assert "time limit of 1 s is over" in said.pop("over")
    assert said.pop("items") == [1.0, 2.0, 3.0]
    assert all(said.values()), said
    wait_until(lambda: site.renewed(f"desk-{desk}"), START_S, "the member has a new token")


@pytest.mark.parametrize("end", LEAST)
def test_a_board_makes_its_keys(site: Site, end: str) -> None:
    """OpenSSL multiplies there as our own lines do, and the key is good elsewhere."""
    pin, agree, *version, text = bare(site.tree, MAKE, python=python(end)).split(maxsplit=5)
    assert agree == "True"
    assert tuple(map(int, version)) >= LEAST[end]
    assert identity.parse(text).pin == pin
    assert tls.server_context(identity.parse(text))
