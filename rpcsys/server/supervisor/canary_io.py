"""Hands a waiting child the job of a canary: the limits and the CPUs of a session in the first slot, and its user."""

from __future__ import annotations

from rpcsys.server.config import ServerConfig
from rpcsys.server.sandbox.messages import CANARY, Job
from rpcsys.server.sandbox.session_user import SessionUsers
from rpcsys.server.supervisor.children import Spawner


class CanaryIo:
    """Begins runs of the canary of ``config``. ``users``: of sessions; None for the server's."""

    def __init__(self, config: ServerConfig, spawner: Spawner, users: SessionUsers | None = None) -> None:
        self._config = config
        self._spawner = spawner
        self._users = users

    def run(self, child: int) -> None:
        """Have a child run it; one that is gone, or does not take the job, is killed."""
        config, canary = self._config, self._config.canary
        assert canary is not None, "there are no runs without one"
        options = {
            "canary": canary.model,
            "cpus": list(config.cpus[0]) if config.cpus else [],
            "load_library": list(config.load_library),
        }
        user = self._users.of_slot(0) if self._users else None
        try:
            self._spawner.give(child, Job(CANARY, b"", "/", config.key, "", options=options, user=user), None)
        except OSError:
            self._spawner.kill(child)
