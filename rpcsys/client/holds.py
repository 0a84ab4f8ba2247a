"""Holds: leases that are kept without calling, by a process of their own on the desk (`rpcsys.client.holder`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from rpcsys import errors
from rpcsys.client import attaching, shown
from rpcsys.client.attaching import VARIABLE, HoldFile
from rpcsys.client.session import Session
from rpcsys.link.address import parse_tracker, tracker_text
from rpcsys.link.link import Closeable
from rpcsys.wire.labels import of_request

RELEASE_S = 10.0  # for a holder to end
#: How long the file of a hold that is over stays, so that who attaches learns why.
KEPT_S = 24 * 3600.0


def hold(
    key: str | None = None,
    *,
    tracker: str | tuple[str, int] | None = None,
    seconds: float | None = None,
    labels: Mapping[str, str] | None = None,
    priority: float = 1,
    wait_timeout: float | None = None,
    user: str | None = None,
    tied: bool = True,
) -> Hold:
    """Lease a device of ``key`` and keep it; waits for one to be free. A context manager, which releases it.

    ``seconds``: how long at most (None: without a limit). ``tied``: it ends with this process, too. The other
    arguments, and the errors, are those of `connect_tracker` and `Tracker.request`. `Hold.session` opens sessions, any
    number at once; programs with `Hold.environment` in theirs use the hold for every request of its key.
    """
    where = tracker if tracker is None or isinstance(tracker, str) else tracker_text(tracker)
    if where is not None:
        parse_tracker(where, 9190)  # raises now
    wanted = {"key": key, "labels": of_request(labels), "priority": priority, "session_timeout": seconds}
    request = {**wanted, "wait_timeout": wait_timeout, "tracker": where, "user": user, "tied": tied}
    own = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-m", "rpcsys.client.holder", folder()]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, start_new_session=True, env=own)
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if not answer:
        raise errors.RpcsysError(f"the hold's process ended with status {process.wait()}; try again")
    found = json.loads(answer)
    if "error" in found:
        process.communicate()
        raise getattr(errors, found["error"])(found["text"])
    process.stdout.close()
    return Hold(found["path"], process if tied else None)


class Hold(Closeable):
    """A lease that is kept. ``path``: its file, which RPCSYS_LEASE names."""

    def __init__(self, path: str, process: subprocess.Popen[str] | None) -> None:
        self.path = path
        self._process = process

    def __repr__(self) -> str:
        return f"<hold {self.path}>"

    def _repr_html_(self) -> str:
        return shown.hold_html(self)

    @property
    def about(self) -> HoldFile:
        """What its file says now. Raises `UsageError` once it is released."""
        return attaching.read(self.path)

    def session(self, session_timeout: float | None = None) -> Session:
        """Open a session beside those that are attached already; errors as `rpcsys.client.attaching.attach`."""
        return attaching.attach(self.path, session_timeout)

    def environment(self) -> dict[str, str]:
        """The variables with which other programs, and this one (``os.environ.update``), use this hold."""
        return {VARIABLE: self.path, "RPCSYS_TRACKER": self.about.tracker}

    def close(self) -> None:
        """Release the board. Does nothing where it is released already."""
        process, self._process = self._process, None
        if process is None:
            with contextlib.suppress(errors.UsageError):
                release(self.path)
            return
        assert process.stdin is not None, "it is a pipe"
        process.stdin.close()
        try:
            process.wait(RELEASE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _remove(self.path)  # it has the reason if the board ended the hold


def release(path: str) -> HoldFile:
    """End the hold of a file, whoever started it; what its file said. Raises `UsageError` for a file that is none.

    Raises `RpcsysError` if its holder does not end.
    """
    found = attaching.read(path)
    if not found.over:
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGTERM)
        until = time.monotonic() + RELEASE_S
        while _alive(path):
            if time.monotonic() > until:
                raise errors.RpcsysError(f"the holder does not end; type: kill -9 {found.pid}")
            time.sleep(0.02)
    _remove(path)
    return found


def all_holds() -> list[HoldFile]:
    """The holds of this user on this machine, the oldest first; removes the files of those that are over for a day."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder()):
            path = os.path.join(folder(), name)
            with contextlib.suppress(errors.UsageError, OSError):
                one = attaching.read(path)
                if one.over and time.time() - os.stat(path).st_mtime > KEPT_S:
                    _remove(path)
                else:
                    found.append(one)
    return sorted(found, key=lambda one: one.since)


def folder() -> str:
    """The folder of this user's files of holds."""
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_CACHE_HOME")
    return os.path.join(base or os.path.join(os.path.expanduser("~"), ".cache"), "rpcsys", "holds")


def _alive(path: str) -> bool:
    try:
        return not attaching.read(path).over
    except errors.UsageError:  # it is removed
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
