"""The credentials of a closed lab whose daemons run on this machine (:class:`rpcsys.lab.Lab`)."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from rpcsys.link import credential
from rpcsys.tracker import lab_folder
from rpcsys.tracker.lab_folder import LabFolder
from rpcsys.tracker.members import Members
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind, Token

NAME, KEEPER, PROXY = "lab", "keeper", "proxy"


class LabCredentials:
    """The lab's folder below ``folder``, and a file with the credential of each member.

    ``boards``: their names, and the key of each. While the lab runs, this process comes in as its keeper.
    """

    def __init__(self, folder: Path, host: str, boards: Mapping[str, str]) -> None:
        self._held = hold_port(host)
        self.port: int = self._held.getsockname()[1]
        self._folder = folder
        self.lab = folder / NAME
        keeper = lab_folder.create(self.lab, NAME, [f"{host}:{self.port}"], KEEPER)
        credential.write(str(self.path(KEEPER)), keeper)
        with contextlib.closing(Members(self.lab)) as known:
            self._enrol(known, PROXY, HolderKind.PROXY)
            for name, key in boards.items():
                self._enrol(known, name, HolderKind.BOARD, key)
        credential.use(str(self.path(KEEPER)))

    def path(self, member: str) -> Path:
        """The file of a member's credential."""
        return self._folder / f"{member}.credential"

    def close(self) -> None:
        """This process comes in no longer."""
        credential.use_no_more(str(self.path(KEEPER)))
        self._held.close()

    def _enrol(self, known: Members, name: str, kind: HolderKind, *keys: str) -> None:
        secret = tokens.new_secret()
        member = known.enrol(name, kind, tokens.hash_of(secret), time.time(), device_keys=keys)
        held = LabFolder(self.lab).credential(name, Token(kind, member.token, secret).text)
        credential.write(str(self.path(name)), held)


def hold_port(host: str) -> socket.socket:
    """Hold a free port: no other process is given it, and a daemon that is told its number can listen there.

    The tracker of a lab has the port that is in its members' credentials, which are made before it starts.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the daemon's own socket has it
    holder.bind((host, 0))
    return holder
