"""The job of a canary."""

from __future__ import annotations

from rpcsys.server.canary.setting import CanaryChoice
from rpcsys.server.config import ServerConfig
from rpcsys.server.sandbox.messages import CANARY
from rpcsys.server.supervisor.canary_io import CanaryIo


class FakeSpawner:
    """Keeps what it is told."""

    def __init__(self, error: OSError | None = None) -> None:
        self.jobs, self.killed, self.error = [], [], error

    def give(self, child, job, descriptor):
        if self.error is not None:
            raise self.error
        self.jobs.append((child, job, descriptor))

    def kill(self, child):
        self.killed.append(child)


class FakeUsers:
    """The users of slots."""

    def of_slot(self, slot):
        return ("session", slot)


def test_a_canary_has_the_cpus_and_the_user_of_the_first_slot():
    spawner = FakeSpawner()
    config = ServerConfig(key="k", cpus=((2, 3), (4, 5)), canary=CanaryChoice("/m.onnx", None), load_library=("/a.so",))
    CanaryIo(config, spawner, FakeUsers()).run(7)
    ((child, job, descriptor),) = spawner.jobs
    assert (child, job.kind, job.user, descriptor) == (7, CANARY, ("session", 0), None)
    assert job.options == {"canary": "/m.onnx", "cpus": [2, 3], "load_library": ["/a.so"]}


def test_a_child_that_is_gone_is_killed_for_good():
    spawner = FakeSpawner(BrokenPipeError())
    CanaryIo(ServerConfig(key="k", canary=CanaryChoice("builtin", 0.005)), spawner).run(7)
    assert spawner.killed == [7]
