"""A lease whose session another client opens, such as TVM's."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, Iterator

from rpcsys.client.tracker import Tracker
from rpcsys.client.waiting import Wanted, wait
from rpcsys.errors import NoTls
from rpcsys.wire import pinned_keys


@contextlib.contextmanager
def unopened(tracker: Tracker, wanted: Wanted, wait_timeout: float) -> Iterator[Dict[str, Any]]:
    """Lease one device; the body of ``with`` opens its session. An error there gives the device back.

    The lease names ``host``, ``port`` and ``matchkey``. Waits for ``wait_timeout`` seconds at most. Raises what
    `Tracker.request` raises, and `NoTls` where only an encrypted session is served.
    """
    link = tracker._take()
    try:
        with tracker._watcher(None) as watcher:
            link, leases = wait(link, wanted, time.monotonic() + wait_timeout, watcher, tracker._open)
        pinned = pinned_keys.parse(leases[0]["matchkey"])
        if pinned is not None and pinned.secret:
            raise NoTls(
                "this lab is closed, and TVM's client does not encrypt: type: rpcsys connect, and lease with "
                "tvm.rpc.connect_tracker"
            )
        yield leases[0]
    except BaseException:
        link.close()  # which ends the lease if it has no session
        raise
    tracker._idle.append(link)
