"""What a gateway is told when it starts: its models, pools and limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from rpcsys.gateway.calls import Batching

#: Calls of a model that may wait, unless said otherwise.
QUEUE = 1000


class LeasedPool(NamedTuple):
    """A model on leased devices: ``most`` of them, with ``key``; given back when idle for ``idle_s`` seconds.

    ``about``: kind, inputs and outputs, as `model_file.about_model` reads them of ``file``.
    """

    key: str
    file: str
    about: Mapping[str, Any]
    most: int = 1
    idle_s: float = 60.0


class GatewaySettings(NamedTuple):
    """``queue``: calls that may wait for a model. ``only``: the models to serve, all of which must be there for the
    gateway to be ready; empty for all that are found. ``control``: whether clients may load and unload models.
    """

    queue: int = QUEUE
    batches: Mapping[str, Batching] = {}
    pools: Mapping[str, LeasedPool] = {}
    only: Collection[str] = ()
    control: bool = False
