"""An offloaded part: a deployed module, called through `rpcsys.module.remote` as by a device's graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers.memory import array
from benchmarks.peers.ours import SERVER
from benchmarks.peers.subject import Subject, Trial
from rpcsys import module
from rpcsys.client.deploying import Deployment


class Offloading(Subject):
    def start(self) -> None:
        """Start a server and deploy a module that only returns the requested number of bytes."""
        folder = self.place.folder / "deployed"
        self.port = self.start_server((*SERVER, "--allow-pickle", "--deploy", str(folder)))
        self._where = f"127.0.0.1:{self.port}"
        path = self.place.folder / "part.so"
        module.export_library(module.python({"main": _part()}), path)
        with Deployment(self._where) as deployment:
            deployment.put(path)

    @contextmanager
    def exchange(self, there: int, back: int) -> Iterator[Trial]:
        """One call: an array of ``there`` bytes in, one of ``back`` bytes out."""
        with module.remote(serve="part", address=self._where) as part:
            data = array(there)
            assert part(data, back).nbytes == back
            yield Trial(lambda: part(data, back))


def _part():
    from benchmarks.peers.memory import array

    made = {}

    def part(x, size):
        if size not in made:
            made[size] = array(size)
        return made[size]

    return part
