"""A deployed network with many clients: its throughput for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import rpcsys
from benchmarks.models import model_input, written_resnet50
from benchmarks.peers.ours import SERVER
from benchmarks.peers.subject import Subject, Trial
from rpcsys.client.deploying import Deployment

#: Calls of each client in one run.
CALLS = 2


class Serving(Subject):
    def start(self) -> None:
        """Start a server with one worker per deployed module, for one core."""
        folder = self.place.folder / "served"
        self.port = self.start_server((*SERVER, "--deploy", str(folder), "--deploy-workers", "1"))

    @contextmanager
    def served(self, path: str, clients: int) -> Iterator[Trial]:
        """Each client calls again as soon as it has its result; the seconds per call of all clients together."""
        with Deployment(("127.0.0.1", self.port)) as deployment:
            deployment.put(written_resnet50(path), "network")
        data = model_input()
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(clients))
            networks = [
                stack.enter_context(rpcsys.connect("127.0.0.1", self.port, serve="network")) for _ in range(clients)
            ]

            def call_repeatedly(network: rpcsys.client.ServedModule) -> None:
                for _ in range(CALLS):
                    network(data)

            yield Trial(lambda: list(pool.map(call_repeatedly, networks)), times=clients * CALLS)
