"""``python -m tests.live.strangers KIND COUNT HOST PORT``: peers that nobody knows, as fast as they are let.

KIND: ``garbage`` for what only begins like a handshake, ``half-way`` for handshakes that stop and stay, ``fuzzed`` for
damaged openings of sessions, tracker connections and TLS. They come from many addresses of this machine.
"""

from __future__ import annotations

import collections
import contextlib
import random
import socket
import sys

from fuzz import sealed
from fuzz.mutations import damage
from fuzz.targets import OPENINGS, TO_LAB
from rpcsys.wire.tracker import MAGIC_BYTES

_OPEN = 200  # at once, but for those that stay
_SEALED = [each + sealed.FIRST[0] for each in OPENINGS]
_VALID = (*OPENINGS, *_SEALED, *sealed.FIRST, *(MAGIC_BYTES + each for each in TO_LAB))


def said(kind: str, chance: random.Random) -> bytes:
    if kind == "garbage":
        return b"\x16\x03\x01" + chance.randbytes(chance.randint(0, 600))
    if kind == "half-way":
        whole = chance.choice((sealed.FIRST[0], OPENINGS[2], OPENINGS[-2] + sealed.FIRST[0]))
        return whole[: chance.randint(1, len(whole))]
    return damage(chance.choice(_VALID), _VALID, chance)


def main(kind: str, count: int, address: tuple[str, int]) -> None:
    chance = random.Random(count)
    stay: collections.deque[socket.socket] = collections.deque()
    for _ in range(count):
        sock = socket.socket()
        sock.settimeout(30)
        with contextlib.suppress(OSError):
            sock.bind((f"127.0.{chance.randrange(256)}.{chance.randint(1, 254)}", 0))
            sock.connect(address)
            sock.sendall(said(kind, chance))
        stay.append(sock)
        if len(stay) > (count if kind == "half-way" else _OPEN):
            stay.popleft().close()
    print("done", flush=True)
    sys.stdin.read()  # until its starter has seen enough


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), (sys.argv[3], int(sys.argv[4])))
