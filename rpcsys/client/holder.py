"""The holder: the process on the desk that has a hold's lease and its one connection to the board.

It reads a request, a line of JSON, from standard input, and writes one with the hold's file, or the error, to standard
output. A tied holder releases the board when its standard input ends, any other when it is told to (SIGTERM).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any

from rpcsys.client import answers
from rpcsys.client.session import Session
from rpcsys.client.tracker import Tracker, connect_tracker
from rpcsys.errors import NotSupported, ProtocolError, RpcsysError, one_line
from rpcsys.link.address import tracker_text
from rpcsys.stream import DONT_WAIT, Ended, Stream
from rpcsys.wire import frames

PING_S = 10.0


class HoldingTracker(Tracker):
    """A tracker whose sessions are holds."""

    def _open_session(self, lease: dict[str, Any], limit_s: float | None) -> Session:
        from rpcsys.client.connection import open_session

        address = (lease["host"], lease["port"])
        session = open_session(address, lease["matchkey"], session_timeout=limit_s, lease=lease, hold=True)
        if session.info["capabilities"].get("hold") is not True:
            session.close()
            server = lease.get("server") or lease["host"]
            raise NotSupported(f"{server} cannot be held: its server is older; type: rpcsys board upgrade {server}")
        return session


class Holder:
    """One hold, from its request to its end. ``folder``: of the files of holds."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._granted = self._tied = False

    def run(self) -> int:
        """Hold the board that is asked for; the exit status."""
        request: dict[str, Any] = json.loads(sys.stdin.readline())
        self._tied = request.pop("tied")
        threading.Thread(target=self._watch_input, daemon=True).start()
        try:
            session, about = _lease(request)
            self._granted = True
            path, descriptor = self._make_file(about)
        except RpcsysError as error:
            _report(error=type(error).__name__, text=str(error))
            return error.exit_status
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        stream, over = session._channel.hand_over(), ""
        with contextlib.suppress(BrokenPipeError):  # nobody waits for the hold any more
            _report(path=path)
            _leave_terminal()
            over = self._keep(stream)
        if over:
            os.pwrite(descriptor, _encoded({**about, "over": over}), 0)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        stream.close()
        return 0

    def _make_file(self, about: dict[str, Any]) -> tuple[str, int]:
        """Write the file, and lock it as long as this process lives; its path and descriptor. Raises `RpcsysError`."""
        path = os.path.join(self._folder, f"{about['pid']}-{os.urandom(4).hex()}.json")
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.pwrite(descriptor, _encoded(about), 0)
        except OSError as error:
            text = f"cannot write into {self._folder} ({error.strerror}); give another one: export XDG_RUNTIME_DIR=…"
            raise RpcsysError(text) from None
        return path, descriptor

    def _watch_input(self) -> None:
        """End with the process that has started this one: while the request waits, and a tied hold also later."""
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        if not self._granted:
            os._exit(1)  # which leaves the queue
        if self._tied:
            self._stop()

    def _stop(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")

    def _keep(self, stream: Stream) -> str:
        """Wait for the end of the hold: "" if it is released here, else why it is over."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(stream.fileno(), select.POLLIN)
        while not (over := _said(stream)):
            if self._woken in {found for found, _ in poll.poll()}:
                with contextlib.suppress(Ended):
                    stream.send(frames.pack(frames.GOODBYE, 0))
                break
        return over


def _lease(request: dict[str, Any]) -> tuple[Session, dict[str, Any]]:
    """The session of a hold, and what its file says. Raises what `Tracker.request` raises."""
    known = connect_tracker(request.pop("tracker"), user=request.pop("user"))
    with known, HoldingTracker(known.address, known.user, known._timeout) as tracker:
        session = tracker.request(**request)
    session.ping(PING_S)  # then the server knows that others may attach
    now, limit_s = time.time(), request["session_timeout"]
    return session, {
        "tracker": tracker_text(known.address),
        "lease": {**session.lease, "labels": request["labels"]},
        "pid": os.getpid(),
        "since": now,
        "until": None if limit_s is None else now + limit_s,
    }


def _said(stream: Stream) -> str:
    """Why the board ends the hold; "" if it does not."""
    try:
        while (frame := stream.receive(DONT_WAIT)) is not None:
            if frame.kind == frames.ERROR:
                return one_line(answers.error_of(frame))
        return ""
    except Ended as end:
        last = stream.last_frame()
        return one_line(answers.error_of(last)) if last is not None else f"the board is gone, or its server: {end}"
    except ProtocolError as error:
        return one_line(error)


def _encoded(about: dict[str, Any]) -> bytes:
    return json.dumps(about).encode()


def _report(**fields: str) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _leave_terminal() -> None:
    """Have nothing of the terminal or the folder where the hold was asked for."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    os.chdir("/")


if __name__ == "__main__":
    sys.exit(Holder(sys.argv[1]).run())
