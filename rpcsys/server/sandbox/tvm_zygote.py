"""The first zygote's side of a second one, which has TVM: it makes the children for TVM's clients.

A shell waits for it, and becomes it with the first such child: TVM takes memory, which a fork copies the page tables
of, and which a board without TVM's clients never loads. It is a fresh interpreter, without what the supervisor and
other sessions need, or a fork of the first zygote; it does what that one does, and dies with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from typing import Any, Callable, NoReturn

from rpcsys.server.sandbox import launch, messages, processes
from rpcsys.server.sandbox.processes import Dead

Begin = Callable[[socket.socket], NoReturn]


class TvmZygote:
    """Starts the second zygote, passes orders on to it, and its messages to the supervisor.

    ``begin`` runs a zygote in the new process, with its control socket. ``children``: the numbers of its children;
    ``pid``: 0 while there is none; ``stuck``: names of its processes that SIGKILL has not ended.
    """

    def __init__(self, supervisor: socket.socket, poll: select.poll, begin: Begin) -> None:
        self.pid = 0
        self.children: set[int] = set()
        self.stuck: list[str] = []
        self._supervisor = supervisor
        self._poll = poll
        self._begin = begin
        self._ready = False  # its imports are done
        self._control: socket.socket | None = None
        self._start_line = -1  # a pipe to one that waits

    @property
    def descriptor(self) -> int:
        """Its control socket, which is readable when it has sent a message; -1 while there is none."""
        return -1 if self._control is None else self._control.fileno()

    def spawn(self, number: int, order: bytes, child_control: int) -> None:
        """Order a child, and start the zygote if there is none. Raises OSError."""
        if self._control is None:
            self._fork(child_control)
        elif self._start_line >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._start_line, b"\n")
            self._forget_line()
        self.children.add(number)
        self._send(order, child_control)

    def kill(self, number: int, order: bytes) -> None:
        """Kill a child; before it is made, the zygote, which is in an import then."""
        if self._ready:
            self._send(order)
        else:
            processes.kill(self.pid)

    def prepare(self, module: str, settings: dict[str, Any]) -> None:
        """Start a process that becomes the second zygote with the first order, and has this process's capabilities.

        Raises OSError.
        """
        ours, theirs = messages.pair()
        waiting, self._start_line = os.pipe()
        try:
            pid = launch.start(module, settings, theirs.fileno(), "rpcsys-tvm", when=waiting)
        except OSError:
            ours.close()
            self._forget_line()
            raise
        finally:
            theirs.close()
            os.close(waiting)
        self._started(pid, ours)

    def _fork(self, child_control: int) -> None:
        ours, theirs = messages.pair()
        pid = processes.fork()
        if not pid:
            ours.close()
            os.close(child_control)
            self._begin(theirs)
        theirs.close()
        self._started(pid, ours)

    def _started(self, pid: int, control: socket.socket) -> None:
        self.pid, self._control, self._ready = pid, control, False
        self._poll.register(control, select.POLLIN)

    def _forget_line(self) -> None:
        if self._start_line >= 0:
            os.close(self._start_line)
        self._start_line = -1

    def _send(self, order: bytes, descriptor: int | None = None) -> None:
        assert self._control is not None
        with contextlib.suppress(ConnectionError):  # it is dead, which the next reaping reports
            messages.send(self._control, order, descriptor)

    def pass_on(self) -> bool:
        """Pass its next message on to the supervisor; whether there was one. Blocks until one comes."""
        if self._control is None:
            return False
        try:
            data, _ = messages.receive(self._control)
        except ConnectionError:
            return True  # it died with an unread order; its last messages follow
        if not data:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._control)
            return False
        message: dict[str, Any] = json.loads(data)
        if "ready" in message:
            self._ready = True
        elif "stuck" in message:
            self.stuck = message["stuck"]
        else:
            self.children.discard(message.get("dead", 0))
            messages.send(self._supervisor, data)
        return True

    def died(self, dead: list[Dead]) -> dict[int, int]:
        """The children that died with it, if it is among the ``dead``, and its exit status or minus the signal."""
        own = [one.status for one in dead if one.pid == self.pid]
        if self._control is None or not own:
            return {}
        while self.pass_on():
            pass
        self.close_own()
        self._control, self.pid, self.stuck = None, 0, []
        lost, self.children = self.children, set()
        return dict.fromkeys(lost, own[0])

    def close_own(self) -> None:
        """Close, in a copy of this process, its private descriptors."""
        self._forget_line()
        if self._control is not None:
            self._control.close()
