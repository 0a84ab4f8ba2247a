"""A link between two network namespaces with delay and packet loss.

``python -m tests.live.impaired_link NAMESPACE INTERFACE NAMESPACE INTERFACE DELAY_MS LOSS_PERCENT`` creates a TUN
interface in each namespace, prints ``ready``, and forwards packets between them until it is killed.
"""

from __future__ import annotations

import collections
import fcntl
import os
import random
import select
import struct
import sys
import time

from tests.live.networks import Namespace

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 65536


def tun(namespace: str, interface: str) -> int:
    """Create a TUN interface in the namespace; its file descriptor."""
    with Namespace(namespace).entered():
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", interface.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def forward(one: int, other: int, delay_s: float, loss: float) -> None:
    """Forward packets both ways without end."""
    other_end = {one: other, other: one}
    due: collections.deque[tuple[float, int, bytes]] = collections.deque()
    while True:
        pause = max(0.0, due[0][0] - time.monotonic()) if due else None
        for descriptor in select.select([one, other], [], [], pause)[0]:
            packet = os.read(descriptor, MTU)
            if random.random() >= loss:
                due.append((time.monotonic() + delay_s, other_end[descriptor], packet))
        while due and due[0][0] <= time.monotonic():
            _, descriptor, packet = due.popleft()
            try:
                os.write(descriptor, packet)
            except OSError:
                pass  # the interface is down or full: the packet is lost


def main(namespace: str, interface: str, other_namespace: str, other_interface: str, delay_ms: str, loss: str) -> None:
    ends = tun(namespace, interface), tun(other_namespace, other_interface)
    print("ready", flush=True)
    forward(*ends, float(delay_ms) / 1000, float(loss) / 100)


if __name__ == "__main__":
    main(*sys.argv[1:])
