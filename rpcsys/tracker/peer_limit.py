"""The limit of connections of one address."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection

from rpcsys.daemon import acceptor
from rpcsys.tracker.addresses import ProxyNetworks

log = logging.getLogger(__name__)


class PeerLimit:
    """At most ``limit`` connections of each address. Trusted proxies and ``replicas``, which are addresses, are exempt:
    they have limits of their own.
    """

    def __init__(
        self, limit: int, proxies: ProxyNetworks, clock: Callable[[], float],
        replicas: Callable[[], Collection[str]] = tuple,
    ) -> None:  # fmt: skip
        self._proxies = proxies
        self._clock = clock
        self._replicas = replicas
        self._of_replicas: Counter[str] = Counter()  # connections that were exempt as a replica's when they came
        advice = "see what runs there, or start the tracker with a higher --max-connections-per-address"
        self._counted = acceptor.ConnectionLimit(limit, None, log, advice)

    def admit(self, address: str, local: str) -> bool:
        """Admit and count a connection. False: the limit is reached, which is logged now and then."""
        if self._proxies.include(address, local):
            return True
        if address in self._replicas():
            self._of_replicas[address] += 1
            return True
        return self._counted.admit(address, self._clock())

    def leave(self, address: str, local: str) -> None:
        """Count the end of an admitted connection."""
        if self._proxies.include(address, local):
            return
        if self._of_replicas[address]:
            self._of_replicas[address] -= 1
        else:
            self._counted.leave(address)
