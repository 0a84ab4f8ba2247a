"""What the command line decides for :class:`rpcsys.server.supervisor.state.State`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """What the command line decides. ``tracked``: match keys of a tracker are wanted, not the plain key.

    ``import_s``: what an import of a zygote or a child may take; ``memory``: bytes that a session may have;
    ``spares``: children that wait while all slots are taken. One costs about 2 MB, and the next session is
    spared the 5 to 10 ms of a fork. ``quiet_s``: nothing is forked for so long while a client waits for its session
    to be opened by a child that is there. ``health_check``, ``recover``: whether the keeper gave such commands.
    ``proxies``: where clients are waited for, as people write it, instead of on a port; ``tracked`` then means that a
    tracker is looked for behind them. ``deploy``: whether modules are deployed here; ``deployed_key``:
    under which connections wait at proxies for clients of these.
    """

    key: str
    slots: int = 1
    tracked: bool = False
    tvm: bool = True
    grace_s: float = 10.0
    import_s: float = 60.0
    memory: int | None = None
    spares: int = 1
    quiet_s: float = 0.05
    health_check: bool = False
    recover: bool = False
    proxies: tuple[str, ...] = ()
    deploy: bool = False
    deployed_key: str = ""
