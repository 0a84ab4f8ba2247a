"""A model host: the process that loads a deployed module, and serves its clients with `WorkerPool`'s threads.

No thread waits for a client: unsent answers stay in its connection, and nothing more is read from it meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import socket
import sys
import time
from typing import Any, NoReturn, Optional

from rpcsys.errors import ProtocolError, RemoteArgumentError, RpcsysError, one_line
from rpcsys.link.tcp import KEEPALIVE_S, keep_alive
from rpcsys.module import loading
from rpcsys.module.module import Module, process
from rpcsys.server.capabilities import capabilities, installed
from rpcsys.server.models.call_queue import Call, CallQueue
from rpcsys.server.models.calls import ModuleCalls
from rpcsys.server.models.connection import ClientConnection
from rpcsys.server.models.worker_pool import READ, WorkerPool, begin, function_of
from rpcsys.server.sandbox import messages
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session import hello
from rpcsys.server.session.calls import Calls
from rpcsys.server.session.incoming import WINDOWS
from rpcsys.server.session.outgoing import error_frame
from rpcsys.stream import Ended
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame
from rpcsys.wire.memory import Pool

REPORT_S = 0.5  # between two reports of the load
STALLED_S = 60.0  # a client that receives none of its answers for so long is dropped
WINDOW_CALLS = 64  # calls a client may have under way; one that has more is dropped
STUCK_S = 5.0  # when an abandoned call has run for so long, the supervisor starts another host
MOST_UNSENT = 4  # unsent answers of all clients, in windows: a quarter of the memory, or 1 GiB
LEAVE_S = 0.005  # between two checks for remaining work when the host leaves
IDLE_S = 60.0  # between two reports while no client is connected
LISTED = 20  # functions of a module that the supervisor lists
SWITCH_S = 0.001  # the switch interval of Python's threads: a short one lets the reading thread wait less
_WRITE = select.EPOLLOUT | select.EPOLLRDHUP
_GONE = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP


def serve(control: socket.socket, job: Job) -> str:
    """Serve the module that ``job`` names. Returns, with the outcome, only if it cannot be loaded."""
    about = job.options["deployed"]
    # Each worker has its share of the CPUs: else onnxruntime would start a thread for each CPU in every call.
    process.threads = max(1, len(os.sched_getaffinity(0)) // about["workers"])
    try:
        module = load(about["path"], about["name"], allow_pickle=about["allow_pickle"])
        described = module.describe()
    except Exception as error:  # noqa: BLE001 - a library may do anything when it is loaded
        why = one_line(error) if isinstance(error, RpcsysError) else f"{type(error).__name__}: {one_line(error)}"
        messages.send_json(control, unloadable=why)
        return "closed"
    sys.setswitchinterval(SWITCH_S)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection is a descriptor
    messages.send_json(control, loaded={"kind": described["kind"], "functions": described["functions"][:LISTED]})
    control.setblocking(False)
    queue = CallQueue(about["workers"], about["queue"], hello.memory() // 4, lambda client: not client.backlog)
    window_bytes = hello.window_bytes()
    serves = {**described, **{name: about[name] for name in ("name", "version", "sha256", "workers", "queue")}}
    fields = hello.fields(
        job, capabilities(), WINDOW_CALLS, window_bytes, limit_s=None, **hello.board(job), serve=serves
    )
    return ModelHost(ModuleCalls(module, window_bytes), queue, control, fields, window_bytes).run()


def load(path: str, name: str, *, allow_pickle: bool) -> Module:
    """Load the module at ``path``, ``name`` in errors. An ONNX model may run in the reference evaluator."""
    if path.endswith(".onnx") and not (installed("onnxruntime") or installed("openvino")):
        return _by_reference(path)
    return loading.load_file(path, name, allow_pickle=allow_pickle)


def _by_reference(path: str) -> Module:
    from rpcsys.module.kinds import reference

    runner = reference.of_file(path)
    outputs = [value.name for value in runner.outputs]

    def main(*args: Any) -> Any:
        if len(args) != len(runner.inputs):
            raise RemoteArgumentError(f"the model takes {len(runner.inputs)} input(s), not {len(args)}")
        results = runner.run(outputs, {value.name: value.check(arg) for value, arg in zip(runner.inputs, args)})
        return results[0] if len(results) == 1 else tuple(results)

    described = [[value.describe() for value in values] for values in (runner.inputs, runner.outputs)]
    return Module("rpcsys.onnx", {"main": main}, inputs=described[0], outputs=described[1])


class ModelHost(WorkerPool):
    """The process of one deployed version, with many clients and one copy of its weights.

    ``greeting``: the fields of HELLO; ``control``: to the supervisor, not blocking; ``window_bytes``: of one frame.

    When the supervisor has it leave (a new version, or the end), it stops reading, finishes its calls, and returns each
    connection at the end of a frame: the successor continues it, and the client notices nothing.
    """

    def __init__(
        self, calls: Calls, queue: CallQueue, control: socket.socket, greeting: dict[str, Any], window_bytes: int
    ) -> None:
        super().__init__(calls, queue)
        self._control = control
        self._hello = frames.encode(frames.HELLO, 0, greeting)
        self._name: str = greeting["serve"]["name"]
        self._pool = Pool()
        self._window_bytes = window_bytes
        self._behind: set[ClientConnection] = set()  # connections with unsent data
        self._connections: dict[int, ClientConnection] = {}  # by descriptor
        self._epoll.register(control.fileno(), select.EPOLLIN)
        self._leaving = False
        self._succeeded = False  # whether a successor takes the connections
        self._reported: tuple[int, ...] = ()  # the load in the last report
        self._stuck = False  # whether a stuck call was reported
        self._keepalive_at = 0.0

    def run(self) -> NoReturn:
        """Serve until the supervisor ends this host; this thread is the watcher."""
        for _ in range(self._queue.workers + 1):
            begin(self._live)
        while True:
            self._keep_watch()

    def _put(self, connection: ClientConnection, frame: Frame) -> None:
        if self._behind:
            self._shed()
        due = time.monotonic() + frame.deadline_ms / 1000 if frame.deadline_ms else math.inf
        with self._lock:
            if self._queue.count(connection) >= WINDOWS * WINDOW_CALLS:
                raise ProtocolError(f"more calls were sent than may be under way: {WINDOW_CALLS}")
            try:
                taken = self._queue.offer(Call(connection, frame, due))
            except KeyError:
                raise ProtocolError(f"call {frame.call_id} is under way already") from None
            self._next_due = min(self._next_due, due)
        if not taken:
            waiting = f"{self._queue.capacity} calls wait for the module {self._name!r} already"
            text = f"{waiting}, which is all that it lets wait; call again in a moment"
            connection.send(error_frame(frame.call_id, "Busy", text, fault="device", retryable=True))

    def _shed(self) -> None:
        """Drop clients with the most unsent data, while all unsent data exceeds `MOST_UNSENT` windows."""
        while sum(connection.unsent for connection in self._behind) > MOST_UNSENT * self._window_bytes:
            self._drop(max(self._behind, key=lambda connection: connection.unsent))

    def _stop(self, call: Call) -> None:
        """After a call was given up: if it runs, stop it where possible, and start a thread in place of its own."""
        if call.abandoned_at is None:
            return
        for stop in call.on_stop:
            stop()
        with contextlib.suppress(RuntimeError):  # no more threads: calls wait until this call is done
            begin(self._live)

    def _cancel(self, connection: ClientConnection, call_id: int) -> None:
        with self._lock:
            call = self._queue.cancel(connection, call_id, time.monotonic())
        if call is not None:
            self._stop(call)
            connection.send(error_frame(call_id, "Cancelled", "the call was cancelled"))

    def _attend(self, descriptor: int, events: int, alone: bool) -> Optional[Call]:
        connection = self._connections.get(descriptor)
        if connection is None:
            if descriptor == self._control.fileno():
                self._take_order()
            return None
        try:
            if events & select.EPOLLOUT:
                connection.by = None if connection.greeted else connection.by  # the client receives again
                connection.flush()
            if events & select.EPOLLIN:
                found = connection.receive(self._leaving)
                if alone and len(found) == 1 and self._may_run_at_once(connection, found[0]):
                    return Call(connection, found[0])
                for frame in found:
                    self._take(connection, frame)
            elif events & _GONE:
                raise Ended("the connection was closed")
        except Ended:
            self._drop(connection)
        except ProtocolError as error:
            connection.send(error_frame(0, "ProtocolError", str(error), fault="network"))
            self._drop(connection)
        else:
            if connection.watched != READ or connection.backlog:
                self._rewatch(connection)
        return None

    def _may_run_at_once(self, connection: ClientConnection, frame: Frame) -> bool:
        """Whether a frame is a call of a quick function, and no other work waits."""
        if frame.kind != frames.CALL or not connection.greeted or frame.deadline_ms:
            return False
        free = self._queue.idle and not self._leaving and not connection.backlog
        return free and function_of(frame) in self._quick

    def _take(self, connection: ClientConnection, frame: Frame) -> None:
        kind = frame.kind
        if not connection.greeted:
            if kind != frames.HELLO:
                raise ProtocolError("a session begins with HELLO")
            connection.greeted, connection.by = True, None
        elif kind == frames.CALL:
            self._put(connection, frame)
        elif kind == frames.PING:
            connection.send(frames.pack(frames.PONG, frame.call_id))
        elif kind == frames.CANCEL:
            self._cancel(connection, frame.call_id)
        elif kind == frames.GOODBYE:
            raise Ended("the client sent GOODBYE")
        else:
            text = f"a connection to a deployed module takes CALL, CANCEL and PING, not {frames.KINDS[kind]}"
            raise ProtocolError(text)

    def _rewatch(self, connection: ClientConnection) -> None:
        with self._lock:
            if connection.closed or connection.descriptor not in self._connections:
                return
            self._behind.discard(connection)
            if connection.backlog:
                self._behind.add(connection)
                wanted = _WRITE
                connection.by = connection.by or time.monotonic() + STALLED_S
            else:
                connection.by = connection.by if not connection.greeted else None
                parting = self._leaving and not connection.stream.missing
                wanted = select.EPOLLRDHUP if parting else READ
            if wanted != connection.watched:
                connection.watched = wanted
                self._epoll.modify(connection.descriptor, wanted)

    def _drop(self, connection: ClientConnection) -> None:
        with self._lock:
            calls = self._queue.drop(connection, time.monotonic())
            self._forget(connection)
        for call in calls:
            self._stop(call)
        connection.close()

    def _forget(self, connection: ClientConnection) -> None:
        """Stop watching a client's connection; with the lock held, and before its descriptor is closed."""
        del self._connections[connection.descriptor]
        self._behind.discard(connection)
        self._epoll.unregister(connection.descriptor)

    def _add_client(self, sock: socket.socket, order: dict[str, Any]) -> None:
        """Add a client from the supervisor; ``reply`` in ``order``: the handshake's answer, if it was not sent yet.

        A client that another host has greeted before gets HELLO again: what it knows is of the version before.
        """
        connection = ClientConnection(sock, str(order["client"]), self._pool, self._window_bytes)
        connection.greeted = order["greeted"]
        if not connection.greeted:
            connection.by = time.monotonic() + hello.HELLO_S
        self._connections[connection.descriptor] = connection
        connection.watched = READ
        self._epoll.register(connection.descriptor, READ)
        reply = order["reply"].encode("latin-1") if order["reply"] is not None else b""
        connection.send([reply, *self._hello] if reply else self._hello)
        self._rewatch(connection)

    def _take_order(self) -> None:
        try:
            data, descriptor = messages.receive(self._control)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)
        order = json.loads(data)
        self._next_due = 0.0
        if descriptor is not None:
            self._confirm(order["conn"])
            self._add_client(socket.socket(fileno=descriptor), order)
        elif "leave" in order:
            self._leaving, self._succeeded = True, order["leave"] == "successor"
            self._send(leaving=True)  # later clients go to the successor

    def _confirm(self, conn: int) -> None:
        """Say that this host has a connection, before it is used: until then the supervisor can hand it to another."""
        while not self._send(took=conn):
            select.select([], [self._control], [])

    def _send(self, descriptor: Optional[int] = None, **fields: Any) -> bool:
        try:
            messages.send_json(self._control, descriptor, **fields)
        except BlockingIOError:
            return False
        except OSError:
            os._exit(0)  # the supervisor is gone: this process would be killed next
        return True

    def _do_due(self, now: float) -> None:
        with self._lock:
            late = self._queue.overdue(now)
            stuck = any(now - (call.abandoned_at or now) >= STUCK_S for call in self._queue.abandoned)
        for call in late:
            self._stop(call)
            text = "the call was not done in its time"
            call.client.send(error_frame(call.frame.call_id, "DeadlineExceeded", text))
        for connection in list(self._connections.values()):
            if connection.by is not None and now >= connection.by:
                self._drop(connection)
        self._keep_alive(now)
        if stuck and not self._stuck:
            self._stuck = self._send(stuck=True)
        load = (self._queue.live - self._queue.waiting, self._queue.waiting, len(self._connections))
        if load != self._reported and self._send(load=load):
            self._reported = load
        if self._leaving:
            self._leave()
        with self._lock:
            busy = self._connections or self._reported[:2] != (0, 0)
            pause = LEAVE_S if self._leaving else REPORT_S if busy else IDLE_S
            self._next_due = min(now + pause, self._queue.deadline())

    def _keep_alive(self, now: float) -> None:
        """Keep the connections of clients that receive nothing, until their time is over."""
        if now < self._keepalive_at:
            return
        self._keepalive_at = now + KEEPALIVE_S
        for connection in list(self._connections.values()):
            keep_alive(connection.socket)
            if connection.watched == select.EPOLLRDHUP:  # unread data may hide its end, as in a session
                connection.send(frames.pack(frames.PONG, 0))

    def _leave(self) -> None:
        """Part with each client that is at the end of a frame, with all calls answered; exit when none is left."""
        for connection in list(self._connections.values()):
            self._rewatch(connection)
            with self._lock:
                busy = self._queue.count(connection) or connection.answering
            if busy or connection.backlog or connection.stream.missing or not self._parted(connection):
                continue
            with self._lock:
                self._forget(connection)
            connection.close(shutdown=not self._succeeded)
        if not self._connections and self._send(outcome="closed"):
            os._exit(0)

    def _parted(self, connection: ClientConnection) -> bool:
        """Hand a client to the successor, or send it GOODBYE; return whether that was possible now."""
        if self._succeeded:
            return self._send(connection.descriptor, moved=connection.peer, greeted=connection.greeted)
        reason = f"the module {self._name!r} is not served here any more"
        return connection.send(frames.encode(frames.GOODBYE, 0, {"reason": reason}))
