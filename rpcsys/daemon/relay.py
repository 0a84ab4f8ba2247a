"""Moves bytes between two streams, as they arrive, until both have ended.

Raw non-blocking sockets with the loop's readiness: transports reach two thirds of this (docs/proxy.md has the figures).
All streams read into one buffer of 1 MiB, which stays in the processor's cache. If a receiver takes less than was read,
the direction keeps the remainder, and reads nothing until it is sent. So a receiver that stops costs one remainder, and
delays no other stream. A large remainder keeps the buffer itself, and a new buffer replaces it.

The end of a stream is passed on after its last byte, while the other direction continues. When a stream breaks, the
other gets `LINGER_S` to take its last bytes, then it is closed.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections.abc import Callable

from rpcsys.daemon.sockets import BREAKS, FAILED, Sockets
from rpcsys.link.tcp import acknowledge_at_once

BUFFER = 1 << 20  # bytes of a buffer, and what one direction keeps at most
COPIED = 64 << 10  # largest remainder that is copied
MAX_KEPT = 64  # most buffers kept by all directions together. Beyond, each reads and keeps `COPIED` bytes.
MAX_FREE = 8  # unused buffers that are kept for the next slow receiver
ROUNDS = 8  # reads of one direction in one turn; with 1, and without a bound, eight streams are 1.4 times slower
SMALL = 16 << 10  # after a shorter read, the direction waits for the loop: a second read would find nothing
LINGER_S = 5.0  # after one stream broke, time for the other to take its last bytes and end


def _pages() -> memoryview:
    """A new buffer that starts at a page's start, as the kernel's data of an idle connection do.

    The kernel copies with one instruction. On some processors (third-generation AMD EPYC) it moves 2 GB/s in place of
    10 if the target's offset in its page is up to 31 bytes above the source's, as with a bytearray.
    """
    return memoryview(mmap.mmap(-1, BUFFER))


class BufferPool:
    """The ``buffer`` that all streams read into, and the unused ones. ``kept``: how many hold remainders."""

    def __init__(self) -> None:
        self.kept = 0
        self._free: list[memoryview] = []
        self._small = memoryview(bytearray(COPIED))
        self.buffer = _pages()

    def keep(self, start: int, end: int) -> memoryview:
        """Keep the buffer's bytes from ``start`` to ``end`` as a remainder, until `give_back`."""
        rest = self.buffer[start:end]
        if end - start <= COPIED:
            return memoryview(bytes(rest))
        self.kept += 1
        if self.kept >= MAX_KEPT:
            self.buffer = self._small
        else:
            self.buffer = self._free.pop() if self._free else _pages()
        return rest

    def give_back(self, rest: memoryview) -> None:
        """Release a remainder that has been sent."""
        if rest.readonly:
            return
        self.kept -= 1
        whole = memoryview(rest.obj)
        if self.buffer is self._small:
            self.buffer = whole
        elif len(self._free) < MAX_FREE:
            self._free.append(whole)


class Flow:
    """One direction of a `Pair`. ``moved``: bytes read; ``ended``: its source has ended, or its sink is dead."""

    __slots__ = ("_broken", "_pair", "_prompt", "_rest", "discarding", "ended", "moved", "sink", "source")

    def __init__(self, pair: Pair, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.moved = 0
        self.ended = False
        self.discarding = False
        self._broken = False
        self._prompt = pair.prompt
        self._pair = pair
        self._rest: memoryview | None = None

    @property
    def stuck(self) -> bool:
        """Whether a remainder waits for the sink."""
        return self._rest is not None

    def start(self, first: bytes = b"") -> None:
        """Begin to read; ``first`` is for the sink, before all that is read."""
        sent = _send(self.sink.send, memoryview(first)) if first else 0
        if sent < len(first):
            self._pause(memoryview(first)[max(sent, 0) :], dead=sent < 0)
        else:
            self._pair.loop.add_reader(self.source.fileno(), self.pump)

    def pump(self) -> None:
        """Pass on the bytes of a readable source."""
        pool = self._pair.pool
        buffer = pool.buffer
        receive, send = self.source.recv_into, self.sink.send
        try:
            for _ in range(ROUNDS):
                count = receive(buffer)
                if not count:
                    self._finish()
                    return
                self.moved += count
                if self._prompt:
                    acknowledge_at_once(self.source)
                if self.discarding:
                    continue
                sent = _send(send, buffer[:count])
                if sent < count:
                    self._pause(pool.keep(max(sent, 0), count), dead=sent < 0)
                    return
                if count < SMALL:
                    return
        except BlockingIOError:
            pass
        except OSError:
            self._finish()
            self._pair.broken(self.source)

    def drain(self) -> None:
        """Send the remainder to a writable sink."""
        assert self._rest is not None
        sent = _send(self.sink.send, self._rest)
        if sent < 0:
            self._pair.broken(self.sink)
        elif sent < len(self._rest):
            self._rest = self._rest[sent:]
        else:
            self._resume()

    def source_broke(self, found: int) -> None:
        """Read the rest of a broken source at once: uvloop reports a broken stream only once."""
        if found & FAILED:
            self._broken = True
            self._read_rest()

    def _read_rest(self) -> None:
        if self.stuck:
            self._pair.broken(self.source)
            return
        before = -1
        while not (self.ended or self.stuck) and before != self.moved:
            before = self.moved
            self.pump()

    def discard(self) -> None:
        """The sink is dead: read and discard the source's bytes, so that the source can end normally."""
        self.discarding = True
        if self._rest is not None:
            self._resume()

    def stop(self) -> None:
        """Read and send no more."""
        loop = self._pair.loop
        loop.remove_reader(self.source.fileno())
        loop.remove_writer(self.sink.fileno())
        if self._rest is not None:
            self._pair.pool.give_back(self._rest)
            self._rest = None

    def _pause(self, rest: memoryview, *, dead: bool) -> None:
        self._rest = rest
        loop = self._pair.loop
        loop.remove_reader(self.source.fileno())
        if dead:
            self._pair.broken(self.sink)
        else:
            loop.add_writer(self.sink.fileno(), self.drain)

    def _resume(self) -> None:
        assert self._rest is not None
        self._pair.pool.give_back(self._rest)
        self._rest = None
        self._pair.loop.remove_writer(self.sink.fileno())
        if self._broken:
            self._read_rest()
        else:
            self.start()

    def _finish(self) -> None:
        self.ended = True
        self._pair.loop.remove_reader(self.source.fileno())
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is closed already
        self._pair.finished()


def _send(send: Callable[[memoryview], int], data: memoryview) -> int:
    """How many bytes of ``data`` were sent; -1 for a dead socket."""
    try:
        return send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return -1


class Pair:
    """Two streams, joined until both have ended; then ``on_end(pair)`` is called. Owns both sockets.

    ``flows``: its two directions; empty once it has ended. ``prompt``: both are of TVM's peers, which wait for
    acknowledgements (`acknowledge_at_once`).
    """

    def __init__(
        self, relay: Relay, left: socket.socket, right: socket.socket, on_end: Callable[[Pair], None],
        prompt: bool = False,
    ) -> None:  # fmt: skip
        self.loop = relay.loop
        self.prompt = prompt
        self.pool = relay.pool
        self.flows: tuple[Flow, ...] = (Flow(self, left, right), Flow(self, right, left))
        self._relay = relay
        self._on_end = on_end
        self._closing: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def broke(self) -> bool:
        """Whether a stream has broken, and not ended."""
        return self._closing is not None

    def start(self, first: bytes = b"") -> None:
        """Begin; ``first`` is for the right stream, before all that the left one says."""
        for flow, data in zip(self.flows, (first, b""), strict=True):
            flow.start(data)
            self._relay.sockets.add(flow.source.fileno(), flow.source_broke, BREAKS)

    def finished(self) -> None:
        """Close the pair if both directions have ended."""
        if all(flow.ended for flow in self.flows):
            self.close()

    def broken(self, sock: socket.socket) -> None:
        """A stream is dead. Its last bytes still go to the other, which has `LINGER_S` to end."""
        for flow in self.flows:
            if flow.sink is sock:
                flow.discard()
        if self._closing is None and not self._closed:
            self._closing = self.loop.call_later(LINGER_S, self.close)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._closing is not None:
            self._closing.cancel()
        for flow in self.flows:
            self._relay.sockets.remove(flow.source.fileno())
            flow.stop()
        for flow in self.flows:
            flow.source.close()
        self._on_end(self)
        self.flows = ()  # breaks a reference cycle: the garbage collector seldom runs in a daemon


class Relay:
    """The objects that all pairs share. To be made inside the event loop."""

    def __init__(self, sockets: Sockets) -> None:
        self.loop = asyncio.get_running_loop()
        self.pool = BufferPool()
        self.sockets = sockets
