"""The tracker's sockets and clock: frames become events, and actions are carried out. Nothing is decided here.

Frames are handled in turns. An error in a peer's frame costs that peer's connection only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from typing import Any

from rpcsys.daemon.acceptor import Acceptor, raise_descriptor_limit
from rpcsys.daemon.http import serve_pages
from rpcsys.daemon.loop import until_signal
from rpcsys.daemon.sockets import Sockets
from rpcsys.link.tcp import tune
from rpcsys.serve import Signals, announce, bind, notify
from rpcsys.tracker import events
from rpcsys.tracker.addresses import plain
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.connection import PeerConnection, PeerLimit
from rpcsys.tracker.events import Close, HistoryEntry, Received, Send, StopTracker
from rpcsys.tracker.message_cache import MessageCache
from rpcsys.tracker.observer import Observer
from rpcsys.tracker.state import TrackerState
from rpcsys.tracker.views.metrics import FrameCounts
from rpcsys.tracker.views.pages import pages
from rpcsys.tracker.views.summary import SummaryText
from rpcsys.wire import control, tracker
from rpcsys.wire.tracker import Put

log = logging.getLogger(__name__)
SWEEP_S = 1.0  # how often connections are checked for silence


class TrackerService:
    """A running tracker, made inside its event loop."""

    def __init__(self, config: TrackerConfig) -> None:
        self.loop = asyncio.get_running_loop()
        self._clock_offset = time.time() - time.monotonic()
        self.connections: dict[int, PeerConnection] = {}  # by number, those in the state
        self.open_connections: dict[PeerConnection, None] = {}  # also before the magic, and while closing
        self.sockets = Sockets(self._turn)
        self._messages = MessageCache()
        self.counts = FrameCounts(self.connections)
        self.stopped = asyncio.Event()
        self._numbers = 0
        self.heard: tuple[list[PeerConnection], list[PeerConnection]] = ([], [])
        self.unsent: list[PeerConnection] = []
        self._summary = SummaryText()
        self._asking: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        started = events.TrackerStarted(
            self.now(), os.urandom(4).hex(), config.stop_key, dict(config.limits), config.proxy_from
        )
        self.state = TrackerState(started)
        self._deadlines = self.state.records.deadlines
        self.observer = Observer(config, self.state.records, self.now, self.counts)
        most = min(config.max_connections_per_address, raise_descriptor_limit() // 2)
        self.admission = PeerLimit(most, self.state.records.proxy_networks, self.now)
        self.perform(events.Restored(started.at, self.observer.restored()))
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def now(self) -> float:
        """Seconds since 1970, by a clock that never runs backwards."""
        return self._clock_offset + time.monotonic()

    # Connections.

    def accept(self, sock: socket.socket, address: Any) -> None:
        """Admit or close a connection that has just been accepted."""
        tune(sock, bulk=False)
        with contextlib.suppress(OSError):  # it has ended already
            place = plain(address[0]), plain(sock.getsockname()[0])
            if self.admission.admit(*place):
                try:
                    PeerConnection(self, sock, *place)
                    return
                except OSError:  # the kernel cannot watch another descriptor
                    self.admission.leave(*place)
        sock.close()

    def _turn(self) -> None:
        """Handle the frames of a turn: offers first, so that requests of the same turn need no place in a queue."""
        (others, servers), self.heard = self.heard, ([], [])
        for connection in (*servers, *others):
            try:
                connection.work()
            except MemoryError:
                raise
            except Exception:  # an error of the tracker's own costs one connection, not all of them
                extra = {"stranger": connection.address}
                log.exception("the tracker failed to handle a frame from %s", connection.address, extra=extra)
                connection.drop("the tracker failed to handle its frame")
        self.flush()

    def greeted(self, connection: PeerConnection) -> int:
        """Give a connection that has sent the magic its number, and return it."""
        self._numbers += 1
        self.connections[self._numbers] = connection
        connection.send(tracker.MAGIC_BYTES)
        self.perform(events.Connected(self.now(), self._numbers, connection.address, connection.local))
        return self._numbers

    def received(self, connection: PeerConnection, frame: bytes) -> None:
        """Handle one frame. Raises `ProtocolError`: the connection must end."""
        self.counts.frames_in += 1
        try:
            message = self._messages.read(frame)
        except tracker.BadMessage as problem:
            if problem.reply is not None:
                connection.send(problem.reply)
            if problem.fatal:
                raise
            return
        kind = type(message)
        if kind is tracker.TvmSummary:
            viewer = self.state.records.peers[connection.number]
            text = self._summary.text(self.state.records, self.now(), viewer)
            connection.send(tracker.frame(text))
            return
        if isinstance(message, (control.History, control.Usage)):  # the history is not part of the state
            asking = self.loop.create_task(self._answer(connection, message))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
            return
        if kind is Put:
            connection.serves = True
        self.perform(Received(self._clock_offset + time.monotonic(), connection.number, message))

    async def _answer(self, connection: PeerConnection, question: control.History | control.Usage) -> None:
        answer = await self.observer.answer(question)
        if connection.number in self.connections:
            connection.send(answer.to_json())
            self.flush()

    def lost(self, connection: PeerConnection) -> None:
        """Give the end of a connection to the state."""
        if self.connections.pop(connection.number, None) is not None:
            self.perform(events.Disconnected(self.now(), connection.number))
            self.flush()

    # Actions.

    def perform(self, event: events.Event) -> None:
        """Give an event to the state and carry out its actions. Messages are sent with the next `flush`."""
        for action in self.state.apply(event):
            if type(action) is Send:
                connection = self.connections.get(action.conn)
                if connection is not None:
                    connection.send(action.message)
            elif type(action) is HistoryEntry:
                self.observer.note(action)
            elif type(action) is Close and action.conn in self.connections:
                self.connections[action.conn].drop(action.reason)
            elif type(action) is StopTracker:
                log.info("stopping: a message with the stop key has come")
                self.stopped.set()
        deadline = self._deadlines.next
        if deadline is not None and deadline < self._timer_at:
            self._arm(deadline)

    def flush(self) -> None:
        """Send what is unsent, with one write for each connection."""
        while self.unsent:
            self.unsent.pop().flush()

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.loop.call_later(max(0.0, deadline - self.now()), self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self.perform(events.TimePassed(self.now()))
        self.flush()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in [*self.open_connections]:
            connection.end_if_silent(now)
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def close(self) -> None:
        """Close all connections and timers. The state gets no event, so the next run restores it as it is now."""
        self._sweeper.cancel()
        for task in self._asking:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
        self.connections.clear()
        for connection in [*self.open_connections]:
            connection.close()
        self.sockets.close()
        self.observer.close()


async def serve(config: TrackerConfig) -> int:
    """Serve until a signal or a stop message comes; return the exit status.

    Raises `PortRangeError`, `ConfigError`: as `rpcsys.serve.bind`.
    """
    listener = bind(config.host, config.port, config.port_end)
    web = bind(config.host, config.http_port, config.http_port + 1, "--http-port") if config.http_port else None
    signals = Signals()
    service = TrackerService(config)
    acceptors = [Acceptor(listener, service.accept)]
    if web is not None:
        observer = service.observer
        shown = pages(service.state.records, observer.metrics, observer.utilisation, service.now)
        acceptors.append(serve_pages(web, shown))
    try:
        port = acceptors[0].port
        log.info("serving on %s:%d", config.host, port)
        announce("tracker", config.host, port, http_port=config.http_port or None)
        await until_signal(signals, service.stopped)
        notify("STOPPING=1")
    finally:
        for acceptor in acceptors:
            acceptor.close()
        service.close()
        signals.close()
    return 0
