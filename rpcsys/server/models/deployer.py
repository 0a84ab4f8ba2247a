"""The process that serves a client which deploys: uploads, as in a session, and four functions.

A host loads a new version before one rename makes it current: after a kill the old or the new version is served.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import socket
import tempfile
import time
from fnmatch import fnmatchcase
from typing import Any, Callable

from rpcsys import stream as streams
from rpcsys.errors import ModelError, ProtocolError, RemoteFileError, RemoteFunctionError, UsageError, printable
from rpcsys.module import external
from rpcsys.module.loading import SUFFIXES
from rpcsys.server.capabilities import capabilities
from rpcsys.server.models.store import Store, Version, is_name
from rpcsys.server.sandbox import messages, processes
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session import hello
from rpcsys.server.session.calls import listed
from rpcsys.server.session.directory import Directory, file_errors
from rpcsys.server.session.files import Files, hashed
from rpcsys.server.session.outgoing import Outgoing, exception_frame
from rpcsys.server.session.registry import taking
from rpcsys.stream import Ended
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame
from rpcsys.wire.limits import Limits

FRESH_S = 5.0  # a folder is locked within this time after it was made


def serve(sock: socket.socket, job: Job, control: socket.socket) -> str:
    """Serve one client that deploys; return the outcome."""
    processes.set_name("rpcsys-deployer")
    _sweep(job.workdir)
    folder = tempfile.mkdtemp(dir=job.workdir)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        return Deployer(sock, job, control, folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _sweep(incoming: str) -> None:
    """Remove the folders of killed deployers, which are not locked."""
    for entry in os.listdir(incoming):
        folder = os.path.join(incoming, entry)
        with contextlib.suppress(OSError):  # its deployer runs, or has just removed it
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if time.time() - os.fstat(lock).st_mtime >= FRESH_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


class Deployer:
    """Serves one client. ``folder``: for uploads; ``control``: to the supervisor, which answers each question once."""

    def __init__(self, sock: socket.socket, job: Job, control: socket.socket, folder: str) -> None:
        self._job = job
        self._control = control
        self._store = Store(job.options["deploy"])
        self._modules: tuple[str, ...] = tuple(job.options.get("modules", ("*",)))
        self._stream = streams.open(sock, Limits(max_body=frames.MAX_CHUNK))
        self._out = Outgoing(self._stream)
        self._files = Files(self._out, Directory(folder), job.options.get("cache"))
        self._functions: dict[str, Callable[..., Any]] = {
            "deploy.put": taking("deploy.put", self._put, str, str),
            "deploy.list": taking("deploy.list", self._list),
            "deploy.remove": taking("deploy.remove", self._remove, str),
            "deploy.rollback": taking("deploy.rollback", self._rollback, str),
            "session.offer": taking("session.offer", self._files.offer, str, int, str),
        }
        self._handlers: dict[int, Callable[[Frame], None]] = {
            frames.CHUNK: self._files.chunk,
            frames.CANCEL: self._files.cancel,
            frames.PING: lambda frame: self._out.send(frames.pack(frames.PONG, frame.call_id)),
            frames.CALL: self._call,
        }

    def run(self) -> str:
        """Serve until the client closes the connection; return the outcome."""
        try:
            options = self._job.options
            able = capabilities(pickle=options["allow_pickle"], cache=bool(options.get("cache")))
            if able["numpy"] and able["onnx"]:  # a single model runs without onnxruntime, too
                able["loads"] = list(dict.fromkeys([".onnx", *able["loads"]]))
            about = hello.fields(self._job, able, 1, frames.MAX_CHUNK)
            self._out.send([self._job.reply, *frames.encode(frames.HELLO, 0, about)])
            hello.received(self._stream)
            while True:
                frame = self._stream.receive()
                if frame is None or frame.kind == frames.GOODBYE:
                    return "closed"
                handler = self._handlers.get(frame.kind)
                if handler is None:
                    return "lost"
                handler(frame)
        except (Ended, ProtocolError):
            return "lost"
        finally:
            self._files.close()

    def _call(self, frame: Frame) -> None:
        name = frame.get("f")
        try:
            if name == "session.upload":
                self._files.begin(frame)
                return
            function = self._functions.get(name) if isinstance(name, str) else None
            if function is None:
                raise RemoteFunctionError("a connection that deploys has " + ", ".join(self._functions))
            with file_errors("--deploy"):
                result = function(*listed(frame.get("a", ())))
            pieces = frames.encode(frames.RESULT, frame.call_id, {"r": result})
        except Ended:
            raise
        except Exception as error:  # noqa: BLE001 - a function may raise anything
            pieces = exception_frame(frame.call_id, error)
        self._out.send(pieces)

    def _put(self, name: str, file: str) -> dict[str, str]:
        """Deploy the uploaded ``file`` as ``name``; return its version. Raises `ModelError` if it does not load."""
        if not is_name(name):
            form = "letters, digits, dot, _ and -, at most 100, a letter or digit first"
            raise RemoteFileError(f"{str(name)[:100]!r} is no name for a module: {form}")
        self._check_allowed(name)
        if not file.isprintable():
            raise RemoteFileError(f"{printable(file)}: a file to deploy has a name that can be printed; rename it")
        if not file.endswith(tuple(SUFFIXES)):
            raise ModelError(f"{file}: what is deployed is one of " + ", ".join(SUFFIXES))
        source = self._files.directory.existing(file)
        beside = _named_by(source, file)
        _, pieces = self._files.directory.pieces(file)
        digest = hashed(pieces, lambda piece: None)["sha256"]
        with self._store.replacing(name):
            self._store.prune(name)
            try:
                version = self._store.stage(name, source, os.path.basename(file), digest, beside)
                self._try_and_switch(version)
            except BaseException:
                self._store.tidy(name)
                raise
            self._ask("seen", {"changed": True})
        return version._asdict()

    def _try_and_switch(self, version: Version) -> None:
        """Make ``version`` the current one. Raises `ModelError` if it does not load; nothing has then changed."""
        why = self._ask("tried", {"try": list(version)})
        if why:
            raise ModelError(why)
        self._store.switch(version)

    def _rollback(self, name: str) -> dict[str, str]:
        """Put back the version that the current one of ``name`` replaced; return it."""
        self._check_deployed(name)
        with self._store.replacing(name):
            version = self._store.earlier(name)
            if version is None:
                raise RemoteFileError(f"no earlier version of {name!r} is kept here; deploy its file again")
            self._try_and_switch(version)
            self._ask("seen", {"changed": True})
        return version._asdict()

    def _list(self) -> list[dict[str, Any]]:
        """The deployments: name, version, file, sha256; state, numbers of running calls, waiting calls and clients."""
        states: dict[str, list[Any]] = self._ask("states", {"states": True})
        fields, unknown = ("state", "running", "waiting", "clients"), ["", 0, 0, 0]
        served = [version for version in self._store.current() if self._allowed(version.name)]
        return [{**one._asdict(), **dict(zip(fields, states.get(one.name, unknown)))} for one in served]

    def _allowed(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._modules)

    def _check_allowed(self, name: str) -> None:
        if not self._allowed(name):
            allowed = ", ".join(self._modules)
            raise RemoteFileError(f"the rules of the lab do not let you deploy {name[:100]!r}; they allow: {allowed}")

    def _check_deployed(self, name: str) -> None:
        self._check_allowed(str(name))
        if not is_name(name) or self._store.find(name) is None:
            has = ", ".join(one.name for one in self._store.current() if self._allowed(one.name)) or "nothing"
            raise RemoteFileError(f"no module {str(name)[:100]!r} is deployed here; it has {has}")

    def _remove(self, name: str) -> None:
        self._check_deployed(name)
        with self._store.replacing(name):
            self._store.withdraw(name)
            try:
                self._ask("seen", {"changed": True})
            finally:
                self._store.tidy(name)

    def _ask(self, answer: str, question: dict[str, Any]) -> Any:
        """Send the supervisor a question; wait for its answer. Raises `Ended` if the client disconnects meanwhile."""
        messages.send_json(self._control, **question)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._stream, select.POLLRDHUP)
        if [descriptor for descriptor, _ in poll.poll()] == [self._stream.fileno()]:
            raise Ended("the client is gone")
        data, _ = messages.receive(self._control)
        if not data:
            raise Ended("the server is gone")
        return json.loads(data)[answer]


def _named_by(source: str, file: str) -> list[str]:
    """The uploaded files that the model ``source`` names, from its folder. Raises `ModelError` if one is missing."""
    try:
        found = external.files_of(source)
    except UsageError:
        text = f"{file} keeps weights in files that did not come with it"
        raise ModelError(f"{text}; deploy it with a client that sends them, or as a library (.so)") from None
    return [os.path.relpath(data.path, os.path.dirname(source)) for data in found if data.path != source]
