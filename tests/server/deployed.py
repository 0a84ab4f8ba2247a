"""Drives `Hosting` as a transcript: events in, actions out."""

from __future__ import annotations

import itertools

from rpcsys.server.models.store import Version
from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import deployment_events as se
from rpcsys.server.supervisor.deployments import Hosting

HOST = ChildKind.HOST
ONE = Version("head", "0001-aaaaaaaaaaaa", "head.so", "a" * 64)
TWO = Version("head", "0002-bbbbbbbbbbbb", "head.so", "b" * 64)


class Script:
    """Hosting with a clock, where each word is followed by what it leads to."""

    def __init__(self, *versions: Version) -> None:
        self.hosting = Hosting(itertools.count(1).__next__)
        self.now = 100.0
        self.hosting.zygote(True)
        self.first = self.say(se.Catalogue, versions)

    def say(self, event: type, *fields) -> list[do.Action]:
        return self.act(self.hosting.handle(event(self.now, *fields)))

    def act(self, actions: list[do.Action]) -> list[do.Action]:
        return [action for action in actions + self.hosting.settle(self.now) if not isinstance(action, do.Log)]

    def visit(self, conn: int, name: str = "head") -> list[do.Action]:
        return self.act(self.hosting.visit(self.now, conn, f"peer{conn}", name))

    def serving(self, child: int) -> list[do.Action]:
        """A child comes up and loads what it is given."""
        assert isinstance(self.act(self.hosting.ready(child))[0], se.BeHost)
        return self.say(se.Loaded, child, "rpcsys.onnx", ("main",))

    def dies(self, child: int) -> list[do.Action]:
        return self.act(self.hosting.dead(self.now, child, -9))


def hand(child: int, conn: int, fresh: bool = True, greeted: bool = False) -> se.Hand:
    return se.Hand(child, conn, f"peer{conn}", fresh, greeted)
