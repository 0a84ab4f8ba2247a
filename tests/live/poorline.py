"""A poor line between two network namespaces: every packet takes a while, and some never arrive.

``python -m tests.live.poorline ROOM INTERFACE ROOM INTERFACE DELAY_MS LOSS_PERCENT`` makes a TUN interface in each,
says ``ready``, and carries packets between them until it is killed.
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

from tests.live.networks import Room

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 65536


def tun(room: str, interface: str) -> int:
    """A new TUN interface in the namespace; its descriptor."""
    with Room(room).entered():
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", interface.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def carry(one: int, other: int, delay_s: float, loss: float) -> None:
    """Carry packets both ways, for ever."""
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
                pass  # its interface is down, or full: lost, as packets are


def main(room: str, interface: str, other_room: str, other_interface: str, delay_ms: str, loss: str) -> None:
    ends = tun(room, interface), tun(other_room, other_interface)
    print("ready", flush=True)
    carry(*ends, float(delay_ms) / 1000, float(loss) / 100)


if __name__ == "__main__":
    main(*sys.argv[1:])
