"""Drives `Deployments` as a transcript: events go in, actions come out."""

from __future__ import annotations

from rpcsys.server.models.store import Version
from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.deployments import Deployments
from rpcsys.server.supervisor.process_table import ProcessTable
from rpcsys.server.supervisor.records import STOP, Policy, ServerRecords

HOST = ChildKind.HOST
ONE = Version("head", "0001-aaaaaaaaaaaa", "head.so", "a" * 64)
TWO = Version("head", "0002-bbbbbbbbbbbb", "head.so", "b" * 64)


class DeploymentsTranscript:
    """`Deployments` with a clock. ``post`` gives it an event and returns the actions, except log lines."""

    def __init__(self, *versions: Version) -> None:
        self.records = ServerRecords(Policy("k", deploy=True))
        self.processes = ProcessTable(self.records)
        self.deployments = Deployments(self.records, self.processes)
        self.handlers = self.deployments.handlers()
        self.now = 100.0
        self.zygote(True)
        self.first = self.post(ev.Catalogue, versions)

    def post(self, event: type, *fields) -> list[do.Action]:
        self.records.now = self.now
        return self.act(self.handlers[event](event(self.now, *fields)))

    def act(self, actions: list[do.Action]) -> list[do.Action]:
        self.records.now = self.now
        return [action for action in actions + self.deployments.settle() if not isinstance(action, do.Log)]

    def greet(self, conn: int, name: str = "head") -> list[do.Action]:
        return self.act(self.deployments.visit(conn, f"peer{conn}", name))

    def serving(self, child: int) -> list[do.Action]:
        """Have a waiting child load its version and serve."""
        assert isinstance(self.act(self.deployments.ready(child))[0], do.BeHost)
        return self.post(ev.Loaded, child)

    def dies(self, child: int) -> list[do.Action]:
        self.records.now = self.now
        return self.act(self.deployments.dead(child, -9))

    def hung_up(self, conn: int) -> list[do.Action] | None:
        return self.deployments.hung_up(conn)

    def zygote(self, up: bool) -> list[do.Action]:
        """Have the zygote start or die."""
        if up:
            return self.act(self.processes.zygote_up(ev.ZygoteUp(self.now)))
        self.processes.zygote_down(self.now)
        return self.act(self.deployments.zygote_down())

    def stop(self) -> list[do.Action]:
        self.records.move(STOP)
        return self.act(self.deployments.stop())


def hand(child: int, conn: int, fresh: bool = True, greeted: bool = False) -> do.Hand:
    return do.Hand(child, conn, f"peer{conn}", fresh, greeted)
