"""A whole lab on this machine: real daemons as subprocesses, for tests, demos and notebooks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rpcsys import local_daemons, notebook
from rpcsys.errors import ConnectError, UsageError
from rpcsys.local_daemons import BUSY, HOST, Daemon, LocalDaemons
from rpcsys.secure_lab import KEEPER, PROXY, LabCredentials, hold_port

if TYPE_CHECKING:
    import socket

    from typing_extensions import Self

    from rpcsys.client import Tracker

GRACE_S = 2.0  # how long sessions may go on when the lab is closed
POLL_S = 0.05


class Lab:
    """A tracker and device servers on this machine, also behind a proxy, started and stopped by ``with``.

    Parameters
    ----------
    servers : key -> number of device servers of that key (each takes one session at a time, unless
        ``server_args`` sets ``--slots``)
    proxy : put a proxy between clients and servers; the servers then do not listen
    secure : a closed lab: everything is encrypted, and only its members come in. This process is a keeper of it;
        ``environment`` has what another one needs to be one, too
    gateway : serve what is deployed by the Open Inference Protocol, at ``inference_address`` and ``grpc_address``;
        each server has a folder for deployments then
    tracker_args, server_args, gateway_args : further flags for the daemons, e.g. ``["--slots", "2"]``

    Raises
    ------
    RpcsysError : a daemon did not start within 30 s or ended at once; the message has the end of its log
    """

    def __init__(
        self,
        servers: Mapping[str, int] | None = None,
        proxy: bool = False,
        *,
        secure: bool = False,
        gateway: bool = False,
        tracker_args: Sequence[str] = (),
        server_args: Sequence[str] = (),
        gateway_args: Sequence[str] = (),
    ) -> None:
        self.servers = dict({"cpu": 1} if servers is None else servers)
        self._running = LocalDaemons("the lab's")
        self._proxied = proxy
        self._secure = secure
        self._served = gateway
        self._credentials: LabCredentials | None = None
        self._grpc: socket.socket | None = None
        self._gateway: Daemon | None = None
        self._tracker_args = list(tracker_args)
        self._server_args = list(server_args)
        self._gateway_args = list(gateway_args)

    def __repr__(self) -> str:
        return f"<lab of {', '.join(self.servers) or 'no servers'}, {'running' if self.daemons else 'closed'}>"

    def _repr_html_(self) -> str:
        ports = [f"{HOST}:{each.port}" if each.port else "" for each in self.daemons]
        about = {
            "tracker": ports[0] if ports else "closed",
            "servers": ", ".join(f"{count} of {key}" for key, count in self.servers.items()),
            "encrypted": "yes" if self._secure else "no",
        }
        rows = [[each.name, port, each.pid, _state(each)] for each, port in zip(self.daemons, ports, strict=True)]
        daemons = [notebook.table(["daemon", "address", "process", "state"], rows)] if rows else []
        return notebook.block("lab on this machine", notebook.facts(about.items()), *daemons)

    @property
    def daemons(self) -> list[Daemon]:
        """The daemons that run: the tracker first."""
        return self._running.all

    def start(self) -> Self:
        """Start all daemons and return when every server is in the tracker's summary."""
        if self._running.folder is not None:
            raise UsageError("the lab runs already; close() it before starting it again")
        try:
            self._start()
        except BaseException:  # Ctrl-C too: the daemons that run must be stopped
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop every daemon and remove the logs. A second call does nothing."""
        self._running.stop()
        if self._credentials is not None:
            self._credentials.close()
            self._credentials = None
        if self._grpc is not None:
            self._grpc.close()
            self._grpc = None
        self._gateway = None
        self._running.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tracker_address(self) -> tuple[str, int]:
        """``(host, port)`` of the tracker."""
        if not self.daemons or not self.daemons[0].port:
            raise UsageError("the lab is not running; use it inside `with Lab(...) as lab:`")
        return HOST, self.daemons[0].port

    @property
    def inference_address(self) -> tuple[str, int]:
        """``(host, port)`` of the gateway for HTTP."""
        return HOST, self._gateway_running().port

    @property
    def grpc_address(self) -> tuple[str, int]:
        """``(host, port)`` of the gateway for gRPC."""
        return HOST, int(self._gateway_running().ready["grpc_port"])

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which another process comes in to this lab: none, if the lab is not ``secure``."""
        return {} if self._credentials is None else {"RPCSYS_LAB": str(self._credentials.path(KEEPER))}

    def connect(self) -> Tracker:
        """A new connection to the lab's tracker."""
        from rpcsys.client import connect_tracker

        return connect_tracker(self.tracker_address)

    def _start(self) -> None:
        folder = self._running.open()
        deadline = time.monotonic() + local_daemons.START_TIMEOUT_S
        self._start_tracker(folder, deadline)
        tracker = ["--tracker", "{}:{}".format(*self.tracker_address)]
        port = 0
        if self._proxied:
            proxy = self._running.spawn("proxy", "rpcsys.proxy", [*tracker, *self._member(PROXY)])
            self._running.await_ready([proxy], deadline)
            tracker, port = ["--through-proxy"], proxy.port
        first = len(self.daemons)
        for name, key in self._boards().items():
            args = ["--key", key, "--name", name, *tracker, *self._member(name), "--grace", str(GRACE_S)]
            if self._served:
                args += ["--deploy", str(folder / f"{name}.deployed")]
            self._running.spawn(name, "rpcsys.server", [*args, *self._server_args], port)
        self._running.await_ready(self.daemons[first:], deadline)
        self._await_registered(deadline)
        if self._served:
            self._start_gateway(deadline)

    def _start_tracker(self, folder: Path, deadline: float) -> None:
        if not self._secure:
            self._running.spawn("tracker", "rpcsys.tracker", self._tracker_args)
        else:
            made = self._credentials = LabCredentials(folder, HOST, self._boards())
            self._running.spawn("tracker", "rpcsys.tracker", ["--lab", str(made.lab), *self._tracker_args], made.port)
        self._running.await_ready(self.daemons, deadline)

    def _start_gateway(self, deadline: float) -> None:
        self._grpc = hold_port(HOST)
        args = ["--tracker", "{}:{}".format(*self.tracker_address), "--grpc-port", str(self._grpc.getsockname()[1])]
        self._gateway = self._running.spawn(
            "gateway", "rpcsys.gateway", [*args, *self._gateway_args], environment=self.environment
        )
        self._running.await_ready([self._gateway], deadline)

    def _gateway_running(self) -> Daemon:
        if self._gateway is None:
            raise UsageError("the lab has no gateway that runs; use `with Lab(..., gateway=True) as lab:`")
        return self._gateway

    def _boards(self) -> dict[str, str]:
        """The servers' names, and the key of each."""
        return {f"{key}-{number}": key for key, count in self.servers.items() for number in range(count)}

    def _member(self, name: str) -> list[str]:
        """The flag with which a daemon comes in as a member."""
        return [] if self._credentials is None else ["--lab", str(self._credentials.path(name))]

    def _await_registered(self, deadline: float) -> None:
        wanted = {f"server:{key}": count for key, count in self.servers.items() if count}
        with self.connect() as tracker:
            while True:
                rows = [row["key"] for row in tracker.summary()["server_info"]]
                if all(rows.count(key) >= count for key, count in wanted.items()):
                    return
                self._running.check_running()
                if time.monotonic() > deadline:
                    within = f"within {local_daemons.START_TIMEOUT_S:g} s"
                    raise ConnectError(f"the lab's servers did not register with its tracker {within}: {BUSY}")
                time.sleep(POLL_S)


def _state(daemon: Daemon) -> str:
    status = daemon.process.poll()
    return "runs" if status is None else f"ended with status {status}"
