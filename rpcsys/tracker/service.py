"""The tracker's sockets and clock: frames become events, and actions are carried out. Nothing is decided here.

Frames are handled in turns. An error in a peer's frame costs that peer's connection only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from rpcsys.daemon.acceptor import raise_descriptor_limit
from rpcsys.daemon.guard import Guard
from rpcsys.daemon.http import NoPage
from rpcsys.daemon.sockets import Sockets
from rpcsys.link.admission import ANY, Admission
from rpcsys.tracker import accepting, events
from rpcsys.tracker.accepting import Place
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.connection import PeerConnection
from rpcsys.tracker.events import Allowed, Close, HistoryEntry, Received, Refused, Send, StopTracker
from rpcsys.tracker.lab_service import LabService
from rpcsys.tracker.leading import Leading
from rpcsys.tracker.message_cache import MessageCache
from rpcsys.tracker.observer import Observer
from rpcsys.tracker.page_past import PagePast
from rpcsys.tracker.peer_limit import PeerLimit
from rpcsys.tracker.results import Question, SharedResults
from rpcsys.tracker.state import TrackerState
from rpcsys.tracker.tables import Position
from rpcsys.tracker.views.metrics import FrameCounts
from rpcsys.tracker.views.pages import TrackerPages
from rpcsys.tracker.views.summary import SummaryText
from rpcsys.wire import control, membership, page_body, results, tracker
from rpcsys.wire.control import Answer
from rpcsys.wire.tracker import Put

if TYPE_CHECKING:
    from rpcsys.tracker.sites.service import SitesService
    from rpcsys.tracker.webhooks import Webhooks

log = logging.getLogger(__name__)
SWEEP_S = 1.0  # how often connections are checked for silence
#: Questions that the state does not answer.
_NOT_THE_STATES = frozenset(
    (tracker.TvmSummary, control.History, control.Usage, membership.ReadPage, *results.MESSAGES, *membership.MESSAGES)
)
REFUSED = -1  # the number of connections that the state does not know


class TrackerService:
    """A running tracker, made inside its event loop.

    ``leading``: of a leader of replicas; ``webhooks``: who is told of what happens, also after this has ended.
    """

    max_frame = tracker.MAX_FRAME
    failed = False  # a replica may end by an error of its own

    def __init__(self, config: TrackerConfig, leading: Leading | None = None, webhooks: Webhooks | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self._leading = leading
        self.holds: Callable[[PeerConnection, bytes], bool] | None = None if leading is None else leading.hold
        last = Position() if leading is None else leading.store.position
        self._clock_offset = max(time.time(), last.at) - time.monotonic()
        self.connections: dict[int, PeerConnection] = {}  # by number, those in the state
        self.open_connections: dict[PeerConnection, None] = {}  # also before the magic, and while closing
        self.sockets = Sockets(self._turn)
        self._messages = MessageCache()
        self.counts = FrameCounts(self.connections, webhooks=None if webhooks is None else webhooks.counts)
        self.stopped = asyncio.Event()
        self._numbers = 0
        self.heard: tuple[list[PeerConnection], list[PeerConnection]] = ([], [])
        self.unsent: list[PeerConnection] = []
        self._summary = SummaryText()
        self._asking: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self.lab = None if config.lab is None else LabService(self, config.lab)
        view = None
        if self.lab is not None:
            view, self.counts.lab = self.lab.view, self.lab.counts
        instance = os.urandom(4).hex()
        if config.site is not None:
            instance = f"{config.site}.{instance}"  # so that the names of leases and tickets say where they are
        started = events.TrackerStarted(
            self.now(), instance, config.stop_key, dict(config.limits), config.proxy_from, view,
            os.urandom(32).hex(), 0 if leading is None else leading.term,
            config.canary_action == "aside",
        )  # fmt: skip
        self.state = TrackerState(started)
        self._deadlines = self.state.records.deadlines
        self.observer = observer = Observer(config, self.state.records, self.now, self.counts, leading, webhooks)
        self.results = SharedResults(config.state_dir)
        self._note: Callable[[HistoryEntry], object] = observer.note if self.lab is None else self._note_in_lab
        if leading is not None:
            self._note = leading.note
        past = PagePast(observer.history)
        self.pages = TrackerPages(self.state.records, observer.metrics, observer.utilisation, past, self.now)
        most = min(config.max_connections_per_address, raise_descriptor_limit() // 2)
        self.served = Admission((ANY,) if config.lab else config.admit)
        records = self.state.records
        self.admission = PeerLimit(most, records.proxy_networks, self.now, lambda: records.replicas)
        self.perform(events.Restored(started.at, self.observer.restored(), last.epoch, last.arrivals))
        self.sites = None if config.site is None else self._begin_sites(config)
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def _begin_sites(self, config: TrackerConfig) -> SitesService:
        from rpcsys.tracker.sites.service import SitesService  # a tracker of one site loads nothing of it
        from rpcsys.wire.sites import TO_TRACKER

        self._messages = MessageCache(TO_TRACKER)
        made = SitesService(self, config)
        self.counts.sites = made.counts
        return made

    def now(self) -> float:
        """Seconds since 1970, by a clock that never runs backwards."""
        return self._clock_offset + time.monotonic()

    # Connections.

    def accept(self, sock: socket.socket, address: Any) -> None:
        """Admit or close a connection that has just been accepted."""
        accepting.accept(self, sock, address)

    def adopt(self, sock: socket.socket, place: Place, received: bytes, greeted: bool) -> None:
        """Go on with a connection that came while this tracker did not lead.

        ``received``: what its peer has said that nobody has handled; ``greeted``: its magic was answered.
        """
        connection = accepting.admit(self, sock, place)
        if connection is not None:
            connection.resume(received, greeted)
            if greeted or received:
                connection.work()
                self.flush()

    def _turn(self) -> None:
        """Handle the frames of a turn: offers first, so that requests of the same turn need no place in a queue."""
        (others, servers), self.heard = self.heard, ([], [])
        strangers = () if self.lab is None else self.lab.strangers.take()
        for connection in (*servers, *others, *strangers):
            connection.work()
        if self.lab is not None and self.lab.strangers.heard:
            self.loop.call_soon(self._turn)
        self.flush()

    def greeted(self, connection: PeerConnection) -> int:
        """Give a connection that has sent the magic its number, and return it; `REFUSED` for one that is refused.

        One that has begun TLS behind a proxy's magic has a number already.
        """
        if connection.refusal or connection.number:
            return connection.number or REFUSED
        number = self.number()
        self.connections[number] = connection
        self.perform(events.Connected(self.now(), number, connection.address, connection.local))
        return number

    def number(self) -> int:
        """A number for a connection of the state."""
        self._numbers += 1
        return self._numbers

    def encrypted(self, connection: PeerConnection) -> None:
        """Do nothing: what begins with TLS where no lab is served ends as every other protocol does."""

    def received(self, connection: PeerConnection, frame: bytes) -> None:
        """Handle one frame. Raises `ProtocolError`: the connection must end."""
        self.counts.frames_in += 1
        try:
            message = self._messages.read(frame)
        except tracker.BadMessage as problem:
            if connection.refusal:
                self._refuse(connection, None)
                return
            if problem.reply is not None:
                connection.send(problem.reply)
            if problem.fatal or not connection.known:
                raise
            return
        if (connection.refusal or not connection.known) and not self._meets(connection, message):
            return
        kind = type(message)
        if kind in _NOT_THE_STATES and self._answers(connection, message):
            return
        if kind is Put:
            connection.serves = True
        if self.sites is not None and self.sites.takes(connection, message):
            return
        self.perform(Received(self._clock_offset + time.monotonic(), connection.number, message))

    def _meets(self, connection: PeerConnection, message: tracker.ToTracker) -> bool:
        """Handle a message of a peer that is refused, or not known yet; whether it is known now."""
        if not connection.refusal and self.lab is not None and self.lab.meets(connection, message):
            return True
        if connection.refusal:
            self._refuse(connection, message)
        return False

    def _answers(self, connection: PeerConnection, message: tracker.ToTracker) -> bool:
        """Answer a question that is not for the state; whether it is answered."""
        if self.lab is not None and self._forbids(self.lab, connection, message):
            return True
        if isinstance(message, tracker.TvmSummary):
            viewer = self.state.records.peers[connection.number]
            text = self._summary.text(self.state.records, self.now(), viewer)
            connection.send(tracker.frame(text))
        elif isinstance(message, (control.History, control.Usage)):  # the history is not part of the state
            self.begin(self._answer(connection, message))
        elif isinstance(message, results.MESSAGES):
            user = self.state.records.peers[connection.number].who
            self.begin(self._answer_results(connection, message, user))
        elif isinstance(message, membership.ReadPage):
            self.begin(self._answer_page(connection, message))
        elif self.lab is not None and isinstance(message, membership.MESSAGES):
            self.begin(self.lab.answer(connection, message))
        else:
            return False
        return True

    def _forbids(self, lab: LabService, connection: PeerConnection, message: tracker.ToTracker) -> bool:
        """Refuse a question that the state does not answer, if its peer may not ask it; whether it is refused."""
        refused = self.state.refused(self.state.records.peers[connection.number], message)
        if refused is not None:
            connection.send(refused[0].message)
            lab.note_asked(refused[1])
        return refused is not None

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside all else, until the tracker ends."""
        task = self.loop.create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _refuse(self, connection: PeerConnection, message: Any) -> None:
        """Tell a peer of a network that is not served why."""
        error, why = "Forbidden", connection.refusal
        if self.lab is not None:
            error, why = self.lab.refusal(connection, message)
        accepting.refuse(connection, message, error, why)

    async def _answer(self, connection: PeerConnection, question: control.History | control.Usage) -> None:
        self._tell(connection, await self.observer.answer(question))

    async def _answer_results(self, connection: PeerConnection, question: Question, user: str) -> None:
        self._tell(connection, await self.results.answer(question, connection.number, user))

    async def _answer_page(self, connection: PeerConnection, question: membership.ReadPage) -> None:
        if question.path not in self.pages:
            self._tell(connection, Answer(question.id, False, "UnknownPage", f"there are: {' '.join(self.pages)}"))
            return
        try:
            content = self.pages[question.path]()
            kind, body = content if isinstance(content, tuple) else await content
        except NoPage as problem:
            self._tell(connection, Answer(question.id, False, "UnknownPage", problem.args[1]))
            return
        packed = await self.loop.run_in_executor(None, page_body.pack, body)
        self._tell(connection, Answer(question.id, True, fields={"kind": kind, "body": packed}))

    def _tell(self, connection: PeerConnection, answer: Answer) -> None:
        if connection.number in self.connections:
            connection.send(answer.to_json())
            self.flush()

    def lost(self, connection: PeerConnection) -> None:
        """Give the end of a connection to the state."""
        if self.connections.pop(connection.number, None) is not None:
            self.perform(events.Disconnected(self.now(), connection.number))
            if self.sites is not None:
                self.sites.left(connection.number)
            self.flush()

    # Actions.

    def perform(self, event: events.Event) -> None:
        """Give an event to the state and carry out its actions. Messages are sent with the next `flush`."""
        for action in self.state.apply(event):
            if type(action) is Send:
                connection = self.connections.get(action.conn)
                if connection is not None:
                    connection.send(action.message)
                elif self.sites is not None:
                    self.sites.told(action.conn, action.message)
            elif type(action) is HistoryEntry:
                self._note(action)
            elif type(action) is Refused or type(action) is Allowed:
                if self.lab is not None:
                    self.lab.note_asked(action)
            elif type(action) is Close and action.conn in self.connections:
                self.connections[action.conn].drop(action.reason)
            elif type(action) is StopTracker:
                log.info("stopping: a message with the stop key has come")
                self.stopped.set()
        deadline = self._deadlines.next
        if deadline is not None and deadline < self._timer_at:
            self._arm(deadline)

    def _note_in_lab(self, entry: HistoryEntry) -> None:
        assert self.lab is not None, "without one, the observer notes entries itself"
        self.observer.note(entry)
        self.lab.note(entry)

    def flush(self) -> None:
        """Send what is unsent, with one write for each connection. It ends a turn."""
        while self.unsent:
            self.unsent.pop().flush()
        if self._leading is not None:
            self._leading.turn_over()

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
        if self.lab is not None:
            self.lab.look_again()
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    # Pages.

    def guard(self) -> Guard | None:
        """Who sees them; None: everybody."""
        return None if self.lab is None else self.lab.guard()

    def close(self, *, deposed: bool = False) -> None:
        """Close all connections and timers. The state gets no event, so the next run restores it as it is now.

        ``deposed``: nothing more is said.
        """
        self._sweeper.cancel()
        if self.sites is not None:
            self.sites.close()
        for connection in [*self.open_connections] if deposed else ():
            connection.cut()
        for task in self._asking:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
        self.connections.clear()
        for connection in [*self.open_connections]:
            connection.close()
            connection.cut()  # nobody would send what is left
        self.sockets.close()
        self.observer.close()
        self.results.close()
        if self.lab is not None:
            self.lab.close()
