"""Starts a real zygote; the test acts as its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rpcsys.server.sandbox import launch, messages, mount_namespace, work_folders
from rpcsys.server.sandbox.messages import RPCSYS, ChildKind, Job

TIMEOUT_S = 60.0


class Supervised:
    """A zygote and its children, observed by their messages."""

    def __init__(self, folder: str, **settings: Any) -> None:
        self.folder = folder
        plain = dict.fromkeys(("memory", "shared", "deploy", "tvm_library"))
        self.settings = {
            **plain, "supervisor": os.getpid(), "fork": True, "preload": [], "imports": [], "folder": folder,
            "isolate": True, "read_only": False, "no_network": False, "secure": False, "confined": True,
            "keep": mount_namespace.hidden([os.getcwd()]),
            "tvm": "off", "tvm_apart": False, "cgroups": {}, "able": (False, False, False, False), "secret": [],
            "user": None, "needed": [], "closed": [], **settings,
        }  # fmt: skip
        self.control, theirs = messages.pair()
        self.control.settimeout(TIMEOUT_S)
        self.pid = launch.start("rpcsys.server.sandbox.zygote", self.settings, theirs.fileno(), "zygote", leader=True)
        theirs.close()
        self.controls: dict[int, socket.socket] = {}

    def next_message(self, *words: str) -> dict[str, Any]:
        """Return the zygote's next message with one of these fields."""
        return _next(self.control, words)

    def child_message(self, child: int, *words: str) -> dict[str, Any]:
        """Return a child's next message with one of these fields."""
        return _next(self.controls[child], words)

    def spawn(self, child: int, kind: ChildKind = ChildKind.SESSION, at_once: bool = False) -> dict[str, Any]:
        """Order a child; return the zygote's message that it is made or dead."""
        self.order(child, kind, at_once)
        return self.next_message("born", "dead")

    def order(self, child: int, kind: ChildKind, at_once: bool = False) -> None:
        ours, theirs = messages.pair()
        ours.settimeout(TIMEOUT_S)
        self.controls[child] = ours
        messages.send_json(self.control, theirs.fileno(), spawn=child, kind=kind, at_once=at_once)
        theirs.close()

    def session(self, child: int, kind: str = RPCSYS, **options: Any) -> socket.socket:
        """Send a ready child a job; return the client's socket."""
        here, there = socket.socketpair()
        here.settimeout(TIMEOUT_S)
        workdir = work_folders.make(self.folder, child)
        job = Job(kind, b"", workdir, "k", "peer", options={"load_library": [], **options})
        messages.send(self.controls[child], job.to_bytes(), there.fileno())
        there.close()
        return here

    def leave(self) -> int:
        """Close the supervisor's socket; return the zygote's exit status."""
        self.control.close()
        return os.waitpid(self.pid, 0)[1]


def _next(sock: socket.socket, words: tuple[str, ...]) -> dict[str, Any]:
    while True:
        data, descriptor = messages.receive(sock)
        if descriptor is not None:
            os.close(descriptor)
        assert data, f"it has ended without a message with {words}"
        message: dict[str, Any] = json.loads(data)
        if any(word in message for word in words):
            return message


Start = Callable[..., Supervised]


@pytest.fixture
def start() -> Iterator[Start]:
    """``start(**settings)`` starts a zygote; the fixture ends all zygotes and removes their folders."""
    made: list[Supervised] = []

    def another(**settings: Any) -> Supervised:
        made.append(Supervised(work_folders.make_folder("/var/tmp"), **settings))
        return made[-1]

    yield another
    for one in made:
        one.control.close()
        for control in one.controls.values():
            control.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(one.pid, 0)
        for _ in work_folders.removal(one.folder):  # a zygote that could not begin leaves that to its supervisor
            pass
