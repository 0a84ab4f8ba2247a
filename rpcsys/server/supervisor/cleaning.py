"""Makes the sessions' directories, and removes what sessions leave on the disk and in shared memory.

A thread does the removal, which takes a busy disk milliseconds to seconds, so that no opening session waits for it.
A directory that a session has not changed needs none: a later session gets it. One that it has left empty is renewed
for a later session, or removed at once.
"""

from __future__ import annotations

import collections
import itertools
import os
import queue
import threading

from rpcsys.server.sandbox import governors, work_folders
from rpcsys.server.sandbox.ipc_cleanup import IpcCleanup, files_of, remove_all_of
from rpcsys.server.sandbox.session_user import SessionUsers, User
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import Loop


class Cleaner:
    """Removes what sessions leave in ``folder``, and posts `Removed` for each session.

    Where sessions do not see each other's directories, those of the next ``ahead`` sessions are made in advance.
    ``users``: of sessions; None where they have the server's.
    """

    def __init__(self, loop: Loop, folder: str, ahead: int, users: SessionUsers | None = None) -> None:
        self._loop = loop
        self._folder = folder
        self._ahead = ahead
        self._own_users = users is not None and users.own
        self._numbers = itertools.count(1)
        self._ready: collections.deque[str] = collections.deque()
        self._begun: dict[int, tuple[str, list[tuple[int, ...]]]] = {}  # sessions' directories, as they were made
        self._users: dict[int, int] = {}  # sessions' users, where each slot has its own
        self._ipc = IpcCleanup(users.uids if users else ())
        self._orders: queue.SimpleQueue[tuple[int, str, int]] = queue.SimpleQueue()
        self._results: collections.deque[tuple[int, tuple[str, ...], str]] = collections.deque()
        self._reading, self._writing = os.pipe()
        loop.add(self._reading, self._collect)
        self._thread: threading.Thread | None = None

    def tidy(self) -> None:
        """Remove the folders of servers that were killed with all their processes. To be called after `StartZygote`."""
        try:
            abandoned = work_folders.abandoned(self._folder)
        except OSError:
            return
        if abandoned:
            threading.Thread(target=_remove, args=(abandoned,), name="rpcsys-tidier", daemon=True).start()

    def note(self) -> None:
        """Record the IPC objects that exist before the only session starts: it did not make them."""
        self._ipc.note_idle()

    def make_folder(self, session: int, user: User | None = None) -> str:
        """The directory of a new session, and of its ``user``: made in advance, or a new one. Raises OSError."""
        files = self._take(session) or work_folders.make(self._folder, session)
        if user is not None:
            work_folders.give(files, user.uid, user.gid)
            self._users[session] = user.uid if self._own_users else 0
        self._begun[session] = files, work_folders.state(files)
        return files

    def _take(self, session: int) -> str:
        while self._ready:
            try:
                return work_folders.take(self._ready.popleft(), self._folder, session)
            except OSError:
                pass  # another process has removed it: try the next
        return ""

    def start(self, session: int, sweep: str) -> None:
        """Begin to remove what a session left; ``sweep`` as in :class:`rpcsys.server.supervisor.actions.Finish`."""
        files, before = self._begun.pop(session, ("", []))
        user = self._users.pop(session, 0)
        left = user and next(files_of(user, shared=False), "")
        if files and not sweep and not left and (self._put_back(files, before) or self._remove_empty(files)):
            self._loop.post(ev.Removed, session)
            return
        self._orders.put((session, sweep, user))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rpcsys-cleaner", daemon=True)
            self._thread.start()

    def _put_back(self, files: str, before: list[tuple[int, ...]]) -> bool:
        """Keep a directory in which nothing is left for a later session; whether that was possible."""
        if len(self._ready) >= self._ahead:
            return False
        try:
            work_folders.renew(files, before)
            self._ready.append(work_folders.put_back(files, next(self._numbers)))
        except OSError:
            return False
        return True

    def _remove_empty(self, files: str) -> bool:
        """Remove a directory whose session has removed all that it made; whether that was possible."""
        try:
            work_folders.remove_empty(files)
        except OSError:
            return False  # something is there: the thread removes it
        self._make_ahead()
        return True

    def _make_ahead(self) -> None:
        try:
            while len(self._ready) < self._ahead:
                self._ready.append(work_folders.make_ahead(self._folder, next(self._numbers)))
        except OSError:
            pass  # the next session makes its own directory, and reports the error

    def _run(self) -> None:
        while True:
            session, sweep, user = self._orders.get()
            home = work_folders.home(self._folder, session)
            try:
                if user:
                    removed = remove_all_of(user, shared=bool(sweep))
                else:
                    removed = self._ipc.remove(sweep == "idle") if sweep else ()
                for _ in work_folders.removal(home):
                    pass
                self._results.append((session, removed, work_folders.left_in(home)))
            except Exception as error:  # noqa: BLE001 - after any error this board is not clean
                self._results.append((session, (), f"{home} ({error})"))
            os.write(self._writing, b".")
            if not sweep:  # where sessions share folders, a running one could read the next one's directory
                self._make_ahead()

    def _collect(self) -> None:
        os.read(self._reading, 4096)
        while self._results:
            session, removed, left = self._results.popleft()
            self._loop.post(ev.Removed, session, removed, (left,) if left else ())


def _remove(abandoned: dict[str, int]) -> None:
    for folder, descriptor in abandoned.items():
        governors.put_back(folder)
        for _ in work_folders.removal(folder):
            pass
        os.close(descriptor)
