"""Moving bytes between two streams, as they come, until both have ended.

Raw non-blocking sockets on the loop's readiness: transports reach two thirds of this (docs/proxy.md has the figures).
All streams read into one buffer of 1 MiB, which stays in the processor's cache. Only when a receiver takes less than
was read does a direction keep the remainder, and reads nothing more until that is gone: a receiver that stops costs
what it was last sent, and nobody else's time. A large remainder keeps the buffer itself, and another takes its place.

The end of a stream travels on behind its last byte, while the other direction goes on. A stream that breaks breaks
the other at once, whatever is still under way to it.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections.abc import Callable

from rpcsys.daemon.sockets import BREAKS, FAILED, Sockets

BUFFER = 1 << 20  # bytes of a buffer, and what one direction keeps at most
COPIED = 64 << 10  # a remainder of at most so much is copied
MAX_KEPT = 64  # buffers kept at most, by all directions together. Beyond, each reads and keeps `COPIED` bytes.
MAX_FREE = 8  # buffers to have in hand for the next slow receiver
ROUNDS = 8  # reads of one direction in one turn; with 1, and without a bound, eight streams are 1.4 times slower
SMALL = 16 << 10  # less than this at a time is a conversation: asking for more at once would find nothing
LINGER_S = 5.0  # how long the other stream of one that broke has to take its last bytes and end


def _pages() -> memoryview:
    """A new buffer, at the start of a page, as what an idle connection was sent is in the kernel.

    The kernel copies with one instruction, which on some processors (AMD EPYC of the third generation) moves 2 GB/s in
    place of 10 where the target lies up to 31 bytes further into its page than the source, as a bytearray does.
    """
    return memoryview(mmap.mmap(-1, BUFFER))


class BufferPool:
    """The buffer everybody reads into, and those that are kept or in hand."""

    def __init__(self) -> None:
        self.kept = 0
        self._free: list[memoryview] = []
        self._small = memoryview(bytearray(COPIED))
        self.buffer = _pages()

    def keep(self, start: int, end: int) -> memoryview:
        """What stands in the buffer from ``start`` to ``end``, to be given back with `give_back`."""
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
        """A remainder that is gone."""
        if rest.readonly:
            return
        self.kept -= 1
        whole = memoryview(rest.obj)
        if self.buffer is self._small:
            self.buffer = whole
        elif len(self._free) < MAX_FREE:
            self._free.append(whole)


class Flow:
    """One direction of a `Pair`. ``moved`` counts its bytes; ``ended``: its source has ended, or its sink is dead."""

    __slots__ = ("_broken", "_pair", "_rest", "discarding", "ended", "moved", "sink", "source")

    def __init__(self, pair: Pair, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.moved = 0
        self.ended = False
        self.discarding = False
        self._broken = False
        self._pair = pair
        self._rest: memoryview | None = None

    @property
    def stuck(self) -> bool:
        """Whether the sink took less than was sent to it."""
        return self._rest is not None

    def start(self) -> None:
        """Read from now on."""
        self._pair.loop.add_reader(self.source.fileno(), self.pump)

    def pump(self) -> None:
        """The source has something: pass it on."""
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
        """The sink takes something again."""
        assert self._rest is not None
        sent = _send(self.sink.send, self._rest)
        if sent < 0:
            self._pair.broken(self.sink)
        elif sent < len(self._rest):
            self._rest = self._rest[sent:]
        else:
            self._resume()

    def source_broke(self, found: int) -> None:
        """What is left of the source is read at once: uvloop tells but once of a stream that is broken."""
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
        """The sink is dead: what still comes from the source is read, so that it can end in peace, and thrown away."""
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
            pass  # it is gone already
        self._pair.finished()


def _send(send: Callable[[memoryview], int], data: memoryview) -> int:
    """How much of ``data`` was taken; -1 if nothing ever will be."""
    try:
        return send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return -1


class Pair:
    """Two streams, joined until both have ended; ``on_end(pair)`` is called then. Owns both sockets.

    ``flows`` are its two directions, and none once it has ended.
    """

    def __init__(self, relay: Relay, left: socket.socket, right: socket.socket, on_end: Callable[[Pair], None]) -> None:
        self.loop = relay.loop
        self.pool = relay.pool
        self.flows: tuple[Flow, ...] = (Flow(self, left, right), Flow(self, right, left))
        self._relay = relay
        self._on_end = on_end
        self._closing: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Relay from now on."""
        for flow in self.flows:
            flow.start()
            self._relay.sockets.add(flow.source.fileno(), flow.source_broke, BREAKS)

    def finished(self) -> None:
        """A direction has ended."""
        if all(flow.ended for flow in self.flows):
            self.close()

    def broken(self, sock: socket.socket) -> None:
        """A stream is dead. What it said last still goes to the other, which then has `LINGER_S` to end."""
        for flow in self.flows:
            if flow.sink is sock:
                flow.discard()
        if self._closing is None and not self._closed:
            self._closing = self.loop.call_later(LINGER_S, self.close)

    def close(self) -> None:
        """End both streams."""
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
        self.flows = ()  # they know the pair: it would wait for the collector, which a daemon's loop seldom calls


class Relay:
    """What all pairs share. To be made inside the event loop."""

    def __init__(self, sockets: Sockets) -> None:
        self.loop = asyncio.get_running_loop()
        self.pool = BufferPool()
        self.sockets = sockets
