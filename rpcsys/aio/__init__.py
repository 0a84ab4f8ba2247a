"""The client for asyncio: the same names as `rpcsys.client`, as coroutines over the same connections.

    tracker = await rpcsys.aio.connect_tracker("10.0.0.1:9190")
    async with await tracker.request("rpi4") as session:
        model = await session.load_module("model.onnx")
        y = await model(x)

Calls under way need no threads of their own: a session has one that sends and one that reads, for any number of tasks.
Everything else that blocks (a request in the queue, a transfer) has a thread while it lasts. A cancelled task cancels
its call on the device, its transfer, or its request.
"""

from __future__ import annotations

from rpcsys import need_host

need_host(__name__)

from rpcsys.aio.handles import AsyncRemoteArray, AsyncRemoteFunction, AsyncRemoteModule  # noqa: E402
from rpcsys.aio.processes import AsyncForward, AsyncRemoteProcess  # noqa: E402
from rpcsys.aio.session import AsyncServedModule, AsyncSession, connect  # noqa: E402
from rpcsys.aio.tracker import AsyncTracker, connect_tracker  # noqa: E402

__all__ = [
    "AsyncForward",
    "AsyncRemoteArray",
    "AsyncRemoteFunction",
    "AsyncRemoteModule",
    "AsyncRemoteProcess",
    "AsyncServedModule",
    "AsyncSession",
    "AsyncTracker",
    "connect",
    "connect_tracker",
]
