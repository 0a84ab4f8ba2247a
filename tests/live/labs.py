"""A lab on disk, and its members' credentials."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rpcsys.errors import ConnectError
from rpcsys.link import credential
from rpcsys.link.credential import Credential
from rpcsys.link.link import Link
from rpcsys.tracker import lab_folder
from rpcsys.tracker.lab_folder import LabFolder
from rpcsys.tracker.members import Members
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind, Token
from tests.live.daemons import Daemon, Daemons, free_port
from tests.live.probe import KEEPERS, LabProbe, TrackerProbe

USER, OTHER = "ann", "bob"  # who this process is in a test that knows of no lab, and whom it may be beside that
DESK = "dee"


class LabOnDisk:
    """A lab's folder below ``parent``, for a tracker on loopback; ``keeper``: its founder's credential."""

    def __init__(
        self, parent: Path, name: str = "basement", *, open_too: bool = False, port: int = 0, founder: str = "mo"
    ) -> None:
        self.path = parent / name
        self.port = port or free_port()
        self.where = f"127.0.0.1:{self.port}"
        self.keeper = lab_folder.create(self.path, name, [self.where], founder, open_too=open_too)

    def tracker(self, daemons: Daemons, *flags: str, port: int = 0) -> Daemon:
        """The lab's tracker, ready."""
        KEEPERS[port or self.port] = self.keeper.token
        return daemons.lab_tracker("--lab", str(self.path), *flags, port=port or self.port)

    def join(self, name: str, kind: HolderKind = HolderKind.PERSON, **more: Any) -> Credential:
        """A new member's credential. A tracker that runs knows it within two seconds."""
        with contextlib.closing(Members(self.path)) as known:
            invitation, secret = known.invite(name, kind, time.time(), **more)
            token = Token(kind, invitation, tokens.new_secret())
            known.join(invitation, secret, token.hash, time.time())
        return LabFolder(self.path).credential(name, token.text)

    def board(self, name: str, keys: Sequence[str] = ("rpi4",)) -> Credential:
        return self.join(name, HolderKind.BOARD, device_keys=tuple(keys))

    def revoke(self, name: str) -> None:
        with contextlib.closing(Members(self.path)) as known:
            known.revoke(name, time.time())

    def allow(self, text: str) -> None:
        """Replace the rules, but for the keepers' own."""
        (self.path / "policy.toml").write_text(f'{text}\n[[allow]]\nwho = ["keepers"]\nrights = ["keeper"]\n')


def desk_of(folder: Path, *lines: Credential) -> dict[str, str]:
    """The environment of a desk with these credentials, which are below ``folder``."""
    for each in lines:
        credential.write(str(folder / "rpcsys" / "labs" / f"{each.lab}.json"), each)
    kept = {name: value for name, value in os.environ.items() if "_TRACKER" not in name}
    return {**kept, "XDG_CONFIG_HOME": str(folder), "RPCSYS_LAB": ""}


class LabOfTests(LabOnDisk):
    """The closed lab of a test that knows of none: this process is its keeper, `USER`.

    TVM's servers are let in; TVM's clients if they may come in the ``clear``, else those of the `desk` alone.
    """

    def __init__(self, parent: Path, port: int, clear: bool = True) -> None:
        super().__init__(parent, port=port, founder=USER)
        self._file = str(parent / "keeper.json")
        credential.write(self._file, self.keeper)
        credential.use(self._file)
        KEEPERS[self.port] = self.keeper.token
        other = self.join(OTHER)
        self._tokens = {USER: self.keeper.token, OTHER: other.token}
        OF_TESTS[self.port] = self
        #: The environment of a desk whose user may lease everything.
        self.desk = desk_of(parent / "desk", self.join(DESK))
        self._other = str(parent / f"{OTHER}.json")
        credential.write(self._other, other)
        rights = 'keys = ["*"]\npriority = 1000\nrights = ["see"]\n'
        here = 'open = ["127.0.0.0/8"]\n[tvm]\nfrom = ["127.0.0.0/8"]\n'
        self.allow(f'[page]\n{here}[[allow]]\nwho = ["{OTHER}", "{"tvm" if clear else DESK}"]\n{rights}')
        os.environ["RPCSYS_LAB"] = self._file

    @contextlib.contextmanager
    def as_other(self) -> Iterator[None]:
        """This process is `OTHER`, who is no keeper."""
        os.environ["RPCSYS_LAB"] = self._other
        yield
        os.environ["RPCSYS_LAB"] = self._file

    def join(self, name: str, kind: HolderKind = HolderKind.PERSON, **more: Any) -> Credential:
        """A new member's credential; boards and proxies are known to a running tracker at once."""
        if kind is HolderKind.PERSON:
            return super().join(name, kind, **more)
        secret = tokens.new_secret()
        asked = {"name": name, "kind": kind.value, "keys": [*more.get("device_keys", ())]}
        try:
            with Link.open(("127.0.0.1", self.port), credential=self.keeper) as link:
                token = link.ask("enrol", timeout=30, hash=tokens.hash_of(secret), **asked)["token"]
        except ConnectError:  # it is away, or is just being killed
            return super().join(name, kind, **more)
        return LabFolder(self.path).credential(name, Token(kind, token, secret).text)

    def token(self, name: str, *keys: str) -> str:
        """The token of a keeper, or of a board with keys; the same one for one who comes again."""
        if name not in self._tokens:
            self._tokens[name] = self.board(name, keys).token if keys else self._invited(name)
        return self._tokens[name]

    def _invited(self, name: str) -> str:
        with Link.open(self.where, credential=self.keeper) as link:
            fields = {"name": name, "kind": "p", "keys": [], "groups": ["keepers"], "lasts_s": None}
            line = tokens.parse_invitation(link.ask("invite", timeout=30, **fields)["invitation"])
        secret = tokens.new_secret()
        joining = {"invitation": f"{line.id}.{line.secret}", "hash": tokens.hash_of(secret)}
        Link.open(self.where, credential=self.keeper, joining=joining).close()
        return Token(HolderKind.PERSON, line.id, secret).text

    def reached_at(self, port: int) -> None:
        """Have this process find its credential for a proxy's port, too."""
        KEEPERS[port] = self.keeper.token
        held = credential.read(self._file)
        credential.write(self._file, held._replace(trackers=(*held.trackers, f"127.0.0.1:{port}")))

    def board_file(self, name: str, key: str) -> str:
        """The path of a board's credential; the same one for a board that comes again."""
        path = self.path.parent / f"{name}.json"
        if not path.exists():
            credential.write(str(path), self.board(name, (key,)))
        return str(path)

    def proxy_file(self, name: str) -> str:
        """The path of a proxy's credential: it may offer TVM's servers, with the keys of the tests."""
        path = self.path.parent / f"{name}.json"
        credential.write(str(path), self.join(name, HolderKind.PROXY, device_keys=("board", "lab:5:board")))
        return str(path)

    def close(self) -> None:
        OF_TESTS.pop(self.port, None)
        credential.use_no_more(self._file)
        os.environ.pop("RPCSYS_LAB", None)


OF_TESTS: dict[int, LabOfTests] = {}  # by the ports of their trackers


def peer(tracker: Daemon, name: str, *keys: str) -> TrackerProbe:
    """A raw connection that has said hello as somebody who may do everything, or as a board with keys."""
    lab = OF_TESTS.get(tracker.address[1])
    if lab is None:
        probe = TrackerProbe(tracker.address)
        assert probe.ask([1, {"op": "hello", "version": "0", "user": name}])["ok"]
        return probe
    probe = LabProbe(tracker.address)
    assert probe.hello(lab.token(name, *keys))["ok"]
    return probe


def frame(message: Any) -> bytes:
    """A frame of the tracker's protocol."""
    data = json.dumps(message).encode()
    return struct.pack("<i", len(data)) + data
