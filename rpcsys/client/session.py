"""A session: one leased device, as if it were local; and a deployed module, which is shared with other clients."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union, overload

from rpcsys.client import answers, capabilities, files
from rpcsys.client.calls import Channel
from rpcsys.client.files import Progress, Source
from rpcsys.client.log import SessionLog
from rpcsys.client.remote import Caller, RemoteArray, RemoteFunction, RemoteModule, TimeEvaluator
from rpcsys.errors import ProtocolError, UsageError
from rpcsys.link import Closeable
from rpcsys.wire.values import Ref


class Session(Caller, Closeable):
    """A session with one device. Made by `connect` and `Tracker.request`; a context manager.

    May be used by several threads; their calls run one after another on the device. A device that is
    lost makes every call raise `SessionLost` within seconds.

    Attributes
    ----------
    info : what the device said at the start: version, key, pid, limit_s, capabilities, machine, window
    lease : what the tracker said with the lease (empty without a tracker)
    address : host and port of the server
    """

    def __init__(
        self, channel: Channel, hello: Dict[str, Any], lease: Dict[str, Any], address: Tuple[str, int]
    ) -> None:
        super().__init__(channel)
        self._log = SessionLog(channel)
        channel.on_log(self._log.take)
        self.info = hello
        self.lease = lease
        self.address = address

    def __repr__(self) -> str:
        state = "closed" if self._channel.broken else "open"
        return "<session {} at {}:{}, {}>".format(self.info.get("key", ""), *self.address, state)

    def get_function(self, name: str) -> RemoteFunction:
        """The function registered as ``name`` on the device.

        Raises `RemoteFunctionError` if there is none (every server has ``testing.echo``).
        """
        self._builtin("session.has_function", name)
        return RemoteFunction(self, name, name)

    def load_module(
        self, path: Source, *, name: Optional[str] = None, progress: Optional[Progress] = None
    ) -> RemoteModule:
        """Load a model on the device: a local file (which is uploaded), or one that is there already.

        A library (``.so``) comes with all that is inside: graphs, ONNX models, weights, native code. What the
        device says it cannot load is refused before it is uploaded.

        Raises `RemoteFileError` where neither exists, `ModelError` when it cannot be loaded; both in
        one sentence.
        """
        if not isinstance(path, (str, os.PathLike)) or os.path.isfile(path):
            on_device = name or files.name_of(path)
            capabilities.check_loadable(path, on_device, self.info.get("capabilities", {}))
            self.upload(path, on_device, progress=progress)
        else:
            on_device = name or files.path_on_device(path)
        loaded = self._builtin("session.load_module", on_device)
        return answers.handle(loaded, RemoteModule, "session.load_module")

    def array(self, value: Any) -> RemoteArray:
        """Copy an array to the device, where it stays until the result of this call is dropped."""
        return answers.handle(self._builtin("session.put", value), RemoteArray, "session.put")

    def memory(self) -> Dict[str, Any]:
        """What this session keeps on the device: ``objects`` and ``bytes`` in all, and ``kept``, a list.

        Its rows, the largest first, have ``id``, ``bytes``, what the object ``is`` (array, module, function), and
        ``dtype`` and ``shape``, or ``kind``, or ``name``. What a model takes inside its runtime is not counted.
        """
        found: Dict[str, Any] = answers.from_device(answers.MEMORY, self._builtin("session.memory"), "memory")
        return found

    def run(self, function: Callable[..., Any], *args: Any, deadline_s: Optional[float] = None) -> Any:
        """Run a Python function of yours on the device, where the server was started with ``--allow-pickle``.

        It is sent through cloudpickle, with what it refers to; modules it imports must be on the device.
        Arguments and result are what any call takes. Raises `RemoteFunctionError` where the device takes none, or has
        another minor version of Python, before anything is sent; `RemoteError` for what the function raises.
        """
        blob = capabilities.pickled(function, self.info.get("capabilities", {}))
        return self._builtin("session.run", capabilities.VERSION, blob, *args, deadline_s=deadline_s)

    def upload(self, source: Source, target: Optional[str] = None, *, progress: Optional[Progress] = None) -> str:
        """Copy a local file, or bytes, into the session's directory; its name there.

        ``progress(done, total)`` is called in bytes. The file appears whole, its SHA-256 verified, or
        not at all. A server with ``--cache`` is asked first: a file it knows is not sent again, and an upload that
        broke off, in this session or an earlier one, goes on where it stopped. Raises `UsageError` (a local file that
        cannot be read), `PathError` (a name that leaves the directory), `RemoteFileError`.
        """
        cached = self.info.get("capabilities", {}).get("cache") is True
        return files.upload(self._channel, self._builtin if cached else None, source, target, progress)

    def download(
        self,
        name: str,
        target: Union[str, os.PathLike[str], None] = None,
        *,
        progress: Optional[Progress] = None,
        resume: bool = False,
    ) -> bytearray:
        """Copy a file from the session's directory: its bytes, or into the local file ``target`` (then empty).

        ``target`` appears whole, its SHA-256 verified, or not at all. With ``resume``, what came of it before a break
        is kept in ``TARGET.part``, and the next download with ``resume`` goes on behind that.
        Raises `RemoteFileError` where there is none, `PathError` for a name that leaves the directory.
        """
        return files.download(self._channel, name, target, progress, resume)

    def listdir(self, path: str = ".") -> List[str]:
        """Names of the files in the session's directory, or in one below it; sorted."""
        names: List[str] = answers.from_device(answers.NAMES, self._builtin("session.listdir", path), "listdir")
        return names

    def remove(self, name: str) -> None:
        """Remove a file of the session's directory. Raises `RemoteFileError`, `PathError`."""
        self._builtin("session.remove", name)

    @overload
    def log(self) -> Iterator[str]: ...

    @overload
    def log(self, callback: Callable[[str], Any]) -> None: ...

    def log(self, callback: Optional[Callable[[str], Any]] = None) -> Optional[Iterator[str]]:
        """What the session prints on the device, from Python and from native code, line by line.

        An iterator over the lines from the session's beginning, which waits for more until the session ends; or
        ``callback`` is called with each line from now on, in a thread of its own. A device does not wait for who
        reads slowly: the last 10,000 lines are kept, and a line says where some are missing. The lines go to
        Python's logging in any case, logger ``rpcsys.session``.
        """
        if callback is None:
            return self._log.lines()
        self._log.call(callback)
        return None

    def ping(self, deadline_s: float = 5.0) -> None:
        """Ask the device for a sign of life, which it gives while a call runs, too.

        Raises `DeadlineExceeded`, or another `SessionError`, if there is none in ``deadline_s`` seconds.
        """
        self._channel.ping(deadline_s)

    def close(self) -> None:
        """End the session and give the device back. Does nothing the second time."""
        self._channel.close()

    @property
    def closed(self) -> Optional[Exception]:
        """Why the session cannot be used any more, or None."""
        return self._channel.broken

    def __del__(self) -> None:
        channel = getattr(self, "_channel", None)
        if channel is not None and channel.broken is None:
            channel.close()


class ServedModule(RemoteModule, Closeable):
    """A deployed module, over one connection of its own; a context manager. Made by `connect` with ``serve=``.

    Calls like a `RemoteModule`'s; for any number of threads, whose calls run side by side on the server. Raises `Busy`
    where the server has too much to do (call again in a moment), `SessionLost` when it is gone: then connect again.
    ``deadline_s`` and a future's ``cancel`` end that one call.

    Attributes
    ----------
    name, version : what is deployed; a newer version may have taken its place since
    info : what the server said at the start
    """

    _session: Session

    def __init__(self, session: Session) -> None:
        about = session.info.get("serve")
        if type(about) is not dict:
            session.close()
            raise ProtocolError("the server's HELLO does not say which module it serves")
        super().__init__(session, Ref(0, about), owned=False)
        self.name = str(about.get("name", ""))
        self.version = str(about.get("version", ""))
        self.info: Dict[str, Any] = session.info

    def __repr__(self) -> str:
        return "<served module {} {} at {}:{}>".format(self.name, self.version, *self._session.address)

    def time_evaluator(self, *args: Any, **more: Any) -> TimeEvaluator:
        """Not here: others use the device too."""
        raise UsageError("a shared module is not timed on its server, where others use it too; lease a device for that")

    @property
    def closed(self) -> Optional[Exception]:
        """Why it cannot be used any more, or None."""
        return self._session.closed

    def close(self) -> None:
        """Close the connection. Does nothing the second time."""
        self._session.close()
