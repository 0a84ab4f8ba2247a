"""Each action is carried out by something."""

from __future__ import annotations

import asyncio
from typing import get_args

from rpcsys.daemon.sockets import Sockets
from rpcsys.gateway.actions import Action
from rpcsys.gateway.backend import Backend
from rpcsys.gateway.settings import GatewaySettings


def test_each_action_is_carried_out() -> None:
    async def handled() -> set[type]:
        sockets = Sockets()
        backend = Backend(sockets, GatewaySettings())
        backend.close()
        sockets.close()
        return set(backend._handlers)

    assert asyncio.run(handled()) == set(get_args(Action))
