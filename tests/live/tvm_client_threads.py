"""One user of TVM's unmodified client: several threads that lease, hold and release devices in a loop.

``python -m tests.live.tvm_client_threads SOURCE PORT KEY THREADS HOLD_S SECONDS`` connects from the loopback address
SOURCE and prints the number of its sessions.
"""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time


def connect_from(source: str) -> None:
    """Bind every connection of this process to ``source``: TVM's client has no option for it."""
    connect = socket.socket.connect

    def bound(sock: socket.socket, address):
        if sock.family == socket.AF_INET:
            sock.bind((source, 0))
        return connect(sock, address)

    socket.socket.connect = bound  # type: ignore[method-assign]


def main(source: str, port: str, key: str, threads: str, hold_s: str, seconds: str) -> None:
    connect_from(source)
    from tvm import rpc

    held = []
    until = time.monotonic() + float(seconds)

    def work() -> None:
        tracker = rpc.connect_tracker("127.0.0.1", int(port))
        while time.monotonic() < until:
            remote = tracker.request(key, session_timeout=30)
            remote.get_function("rpc.test.addone")
            time.sleep(float(hold_s))
            del remote
            gc.collect()
            held.append(1)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(int(threads))]
    for worker in workers:
        worker.start()
    print("begins", flush=True)
    for worker in workers:
        worker.join(max(0.1, until - time.monotonic()))
    print(len(held), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
