"""Sessions with one leased device, and connections to a deployed module, which other clients share."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Tuple, TypeVar, Union, overload

from rpcsys import part
from rpcsys.client import answers, capabilities, files, models, turns
from rpcsys.client.calls import CallFuture, Channel
from rpcsys.client.files import Asked, Source
from rpcsys.client.log import SessionLog
from rpcsys.client.remote import Caller, RemoteArray, RemoteFunction, RemoteModule, TimeEvaluator
from rpcsys.errors import ProtocolError, RemoteFileError, UsageError, printable
from rpcsys.link.link import Closeable
from rpcsys.wire.values import Ref

if TYPE_CHECKING:
    from typing import BinaryIO, Mapping, NoReturn, Sequence

    from rpcsys.client.byte_streams import SessionStreams
    from rpcsys.client.forwarding import Forward
    from rpcsys.client.processes import Argument, CompletedProgram, RemoteProcess
    from rpcsys.client.rows import DeviceReport, MemoryReport, TurnsReport
    from rpcsys.client.transfers import TransferReport
    from rpcsys.client.turns import TimedCall

Result = TypeVar("Result")
_NOT_TIMED = "a shared module is not timed on its server, where others use it too; lease a device for that"


class Session(Caller, Closeable):
    """A session with one device. Made by `connect` and `Tracker.request`; a context manager.

    May be used by several threads; their calls run one after another on the device. After the loss of
    the device, every call raises `SessionLost` within seconds.

    Attributes
    ----------
    info : the device's HELLO: version, key, pid, limit_s, capabilities, machine, devices, window
    lease : the tracker's answer with the lease (empty without a tracker)
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
        self._opening = threading.Lock()
        self._streams: Optional[SessionStreams] = None

    def __repr__(self) -> str:
        state = "closed" if self._channel.broken else "open"
        return printable("<session {} at {}:{}, {}>".format(self.info.get("key", ""), *self.address, state))

    def _repr_html_(self) -> str:
        return str(part("rpcsys.client.shown").session_html(self))

    @property
    def devices(self) -> List[Dict[str, Any]]:
        """The devices of this board, its CPU first: name (``opencl:0``), kind, title, memory in bytes (0: not known),
        versions of driver and runtime, and the loaders that can use it here. An older server says the names alone.
        """
        return capabilities.devices(self.info)

    def get_function(self, name: str) -> RemoteFunction:
        """The function registered as ``name`` on the device.

        Raises `RemoteFunctionError` if there is none (every server has ``testing.echo``).
        """
        self._builtin("session.has_function", name)
        return RemoteFunction(self, name, name)

    def load_module(
        self, path: Source, *, name: Optional[str] = None, progress: Asked = None, device: str = "", threads: int = 0
    ) -> RemoteModule:
        """Load a model on the device: a local file (which is uploaded), or one that is there already.

        A library (``.so``) includes its graphs, ONNX models, weights and native code. The files that an ONNX model
        names for its weights are uploaded with it. ``progress`` counts the bytes of all. A model that the device's
        capabilities exclude is refused before the upload.

        ``device`` is the part of the board that runs it, such as ``"opencl:0"``; by default what the file says, else
        the CPU. Calls to different devices of one session run at the same time, calls to one in order. ``threads`` of
        one call, for a model in ONNX's format; by default (0) what the file says, else one for each CPU of the session.

        Raises `UsageError` for a path that can only be a local file's and is none, and where a file that the model
        names is missing or outside its folder, `RemoteFileError` where neither file exists, `ModelError` where the
        device cannot load it so, `NotSupported` where its server is older.
        """
        where = capabilities.how(device, threads, self.info.get("capabilities", {}))
        if not isinstance(path, (str, os.PathLike)) or os.path.isfile(path):
            on_device = name or files.name_of(path)
            capabilities.check_loadable(path, on_device, self.info.get("capabilities", {}))
            with files.reporting(progress, f"load {on_device}") as report:
                models.send(self.upload, models.parts(path, on_device), report)
            loaded = self._builtin("session.load_module", on_device, *where)
        else:
            loaded = self._load_there(os.fspath(path), name or files.path_on_device(path), *where)
        return answers.handle(loaded, RemoteModule, "session.load_module")

    def _load_there(self, path: str, name: str, *where: Any) -> Any:
        """Load the file ``name`` of the session's directory: there is no local file ``path``."""
        try:
            return self._builtin("session.load_module", name, *where)
        except RemoteFileError:
            text = (
                f"there is no file {path!r}, neither here nor on the device: check the path, or see session.listdir()"
            )
            raise RemoteFileError(text) from None

    def array(self, value: Any, *, device: str = "") -> RemoteArray:
        """Copy an array to the board, where it stays until the result of this call is dropped.

        ``device``: in whose memory, such as ``"opencl:0"``; by default the host's, which OpenVINO's devices and NPUs
        read, too.
        """
        where = capabilities.device(device, self.info.get("capabilities", {}))
        return answers.handle(self._builtin("session.put", value, *where), RemoteArray, "session.put")

    def device_report(self) -> DeviceReport:
        """What the devices of the board have done in this session.

        ``devices``: by name, the ``calls`` that ended, the seconds ``busy_s`` that these took, and how many arrays and
        bytes were copied to it (``copied_in``, ``bytes_in``) and back (``copied_out``, ``bytes_out``). ``runs``: the
        newest calls, each as device, number of the call in the session, and begin and end in seconds of one clock.
        """
        found: DeviceReport = answers.from_device(answers.DEVICES, self._builtin("session.devices"), "its devices")
        return found

    def memory(self) -> MemoryReport:
        """The objects that this session keeps on the device: ``objects`` and ``bytes`` in all, and ``kept``, a list.

        It has a row for each object, the largest first: ``id``, ``bytes``, ``is`` (array, module, function), and
        ``dtype`` and ``shape``, or ``kind``, or ``name``. A model's memory inside its runtime is not counted (see
        `board_state`). If the session uses several devices, ``devices`` has for each the ``arrays`` that it keeps and
        their ``bytes``, and the figures of `device_report`.
        """
        found: MemoryReport = answers.from_device(answers.MEMORY, self._builtin("session.memory"), "memory")
        return found

    def board_state(self) -> Dict[str, Any]:
        """What the board shows now: the fields of `TimingResult.board`, as far as it reports them.

        ``process``: bytes of the session's own process, ``anonymous`` (no file's) now, and its ``peak`` with files.
        ``cpu_s``: seconds of its CPUs since the start, ``all`` and ``busy``, ``steal``, and this process's ``own``.
        Raises `RemoteFunctionError` for a server of an earlier version.
        """
        found: Dict[str, Any] = answers.from_device(
            answers.STATE, self._builtin("session.board_state"), "the board's state"
        )
        return found

    def time_turns(
        self, calls: Sequence[TimedCall], order: Sequence[int], number: Sequence[int], limit_s: float = 60.0
    ) -> TurnsReport:
        """Time functions in turns on the device, so that they can be compared: what disturbs one disturbs the others.

        ``calls``: functions with their arguments, or modules for their ``main``. ``order``: the turns, at most 10,000,
        as indexes into ``calls``. In each turn, one call is not timed, and ``number[index]`` calls are timed together.
        No turn begins after ``limit_s`` seconds (at most an hour).

        The report has a list for the ``seconds`` of a call in each turn, and lists of what happened meanwhile.
        `rpcsys.measure.compare` draws the order and judges the seconds. Raises `NotSupported` for an older server,
        `RemoteArgumentError` for values out of range, and what the functions raise.
        """
        report: TurnsReport = self.submit_turns(calls, order, number, limit_s).result()
        return report

    def submit_turns(
        self, calls: Sequence[TimedCall], order: Sequence[int], number: Sequence[int], limit_s: float = 60.0
    ) -> CallFuture:
        """`time_turns` without waiting, as `RemoteFunction.submit`."""
        fields = turns.fields(self.info, self.address, calls, order, number, limit_s)
        return self._submit(fields, functools.partial(turns.told, self._result, len(order)))

    def run(self, function: Callable[..., Result], *args: Any, deadline_s: Optional[float] = None) -> Result:
        """Run a Python function of yours on the device, where the server was started with ``--allow-pickle``.

        cloudpickle sends it with the objects it refers to; the device must have the modules it imports. Arguments and
        result are those of any call. Raises `RemoteFunctionError`, before anything is sent, where the device refuses
        functions or has another minor version of Python; `RemoteError` for the function's own errors.
        """
        blob = capabilities.pickled(function, self.info.get("capabilities", {}))
        result: Result = self._builtin("session.run", capabilities.VERSION, blob, *args, deadline_s=deadline_s)
        return result

    def popen(
        self,
        args: Sequence[Argument],
        *,
        terminal: Union[bool, Tuple[int, int]] = False,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> RemoteProcess:
        """Start a program on the device, where the server was started with ``--allow-exec``; return its process.

        Its streams move both ways as bytes come; one that is not read stops the program's writing, and nothing else.
        ``cwd`` is relative to the session's folder, and ``env`` added to its environment. ``terminal`` gives it a
        terminal, of 24 rows and 80 columns or of the given ones. The program ends with the session at the latest.

        Raises `ProgramNotFound`, `ProgramError`, `ExecNotAllowed`, `NotSupported` for an older server, `UsageError`.
        """
        from rpcsys.client import processes  # here and below: a board's own client starts no programs

        args = processes.command(args)
        return processes.started(self._byte_streams(), self._builtin, args, processes.described(cwd, env, terminal))

    def exec(
        self,
        args: Sequence[Argument],
        *,
        stdin: Union[bytes, BinaryIO] = b"",
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = None,
    ) -> CompletedProgram:
        """Run a program on the device and wait for its end: its ``returncode``, ``stdout`` and ``stderr``.

        ``stdin``: bytes, or a binary file, that it reads. After ``timeout`` seconds it is killed: `DeadlineExceeded`.
        Raises as `popen` does.
        """
        from rpcsys.client.processes import CompletedProgram

        process = self.popen(args, cwd=cwd, env=env)
        outputs = process.communicate(stdin, timeout)
        return CompletedProgram(process.args, process.wait(), *outputs)

    def forward(self, board_port: int, desk_port: int = 0, *, reverse: bool = False) -> Forward:
        """Have programs here reach ``board_port`` of the device at ``desk_port`` of 127.0.0.1 (0: any free one).

        With ``reverse``, have programs there reach ``desk_port`` of this machine at ``board_port`` of 127.0.0.1. For
        any number of connections; the result's ``port`` is the one that is listened at. Needs ``--allow-exec``, as
        `popen` does.

        Raises `UsageError` and `ProgramError` where no port can be listened at, and as `popen` does.
        """
        from rpcsys.client.forwarding import forwarded

        return forwarded(self._byte_streams(), self._builtin, board_port, desk_port, reverse)

    def _byte_streams(self) -> SessionStreams:
        """The byte streams of this session. Raises `NotSupported` for an older server, and if the session is over."""
        from rpcsys.client import byte_streams

        byte_streams.check_able(self.info)
        with self._opening:
            if self._streams is None:
                self._streams = byte_streams.SessionStreams(self._channel)
        return self._streams

    def upload(self, source: Source, target: Optional[str] = None, *, progress: Asked = None) -> str:
        """Copy a local file, or bytes, into the session's directory. Returns its name there.

        ``progress(done, total)`` gets numbers of bytes; True shows a bar, as a notebook does. The file appears whole,
        its SHA-256 verified, or not at all. A server with ``--cache`` gets no file again that it has, and only the rest
        of an upload that broke off, in this session or an earlier one. Raises `UsageError` (a local file that cannot be
        read), `PathError` (a name that leaves the directory), `RemoteFileError`.
        """
        cached = self.info.get("capabilities", {}).get("cache") is True
        with files.reporting(progress, f"upload {target or files.name_of(source)}") as report:
            return files.upload(self._channel, self._builtin if cached else None, source, target, report)

    def download(
        self,
        name: str,
        target: Union[str, os.PathLike[str], None] = None,
        *,
        progress: Asked = None,
        resume: bool = False,
    ) -> bytearray:
        """Copy a file from the session's directory. Returns its bytes, or none with a local file ``target``.

        ``target`` appears whole, its SHA-256 verified, or not at all. With ``resume``, the bytes before a break stay in
        ``TARGET.part``, and the next download with ``resume`` continues behind them.
        Raises `RemoteFileError` for a missing file, `PathError` for a name that leaves the directory.
        """
        with files.reporting(progress, f"download {name}") as report:
            return files.download(self._channel, name, target, report, resume)

    def listdir(self, path: str = ".") -> List[str]:
        """Names of the files in the session's directory, or in one below it; sorted."""
        names: List[str] = answers.from_device(answers.NAMES, self._builtin("session.listdir", path), "listdir")
        return names

    def push(self, local: Union[str, os.PathLike[str]], remote: str = "", *, progress: Asked = None) -> TransferReport:
        """Copy a local file or folder to ``remote`` in the session's directory (default: its own name).

        Only files with another size, time or mode are copied. Each appears whole, and keeps its mode and time. Nothing
        is removed there. Links to files are followed, links to folders left out. What a broken push has copied is not
        copied again. Errors as for `upload`; `NotSupported` for an older server.
        """
        from rpcsys.client import transfers  # not in the device tier

        with files.reporting(progress, "push") as report:
            return transfers.push(self, os.fspath(local), remote, report)

    def pull(
        self, remote: str, local: Union[str, os.PathLike[str], None] = None, *, progress: Asked = None
    ) -> TransferReport:
        """Copy a file or folder of the session's directory to ``local`` (default: its own name), as `push` does.

        Raises `RemoteFileError` if it is not there, `PathError` for a name that leads outside.
        """
        from rpcsys.client import transfers  # not in the device tier

        with files.reporting(progress, "pull") as report:
            return transfers.pull(self, remote, os.fspath(local or ""), report)

    def remove(self, name: str) -> None:
        """Remove a file of the session's directory. Raises `RemoteFileError`, `PathError`."""
        self._builtin("session.remove", name)

    @overload
    def log(self) -> Iterator[str]: ...

    @overload
    def log(self, callback: Callable[[str], Any]) -> None: ...

    def log(self, callback: Optional[Callable[[str], Any]] = None) -> Optional[Iterator[str]]:
        """The session's output on the device, from Python and from native code, line by line.

        Returns an iterator over the lines from the session's beginning, which waits for more until the session ends.
        With ``callback``, calls it with each line from now on, in a thread of its own. The device does not wait for
        slow readers: the last 10,000 lines are kept, and a note marks missing ones. All lines also go to Python's
        logging, logger ``rpcsys.session``.
        """
        if callback is None:
            return self._log.lines()
        self._log.call(callback)
        return None

    def ping(self, deadline_s: float = 5.0) -> None:
        """Check that the device answers. It does so while a call runs, too.

        Raises `DeadlineExceeded`, or another `SessionError`, without an answer in ``deadline_s`` seconds.
        """
        self._channel.ping(deadline_s)

    def close(self) -> None:
        """End the session and release the device. Does nothing the second time."""
        self._channel.close()
        self._close_streams()

    def _close_streams(self) -> None:
        if self._streams is not None:
            self._streams.pump.close()

    @property
    def closed(self) -> Optional[Exception]:
        """The error that ended the session, or None while it is open."""
        return self._channel.broken

    def __del__(self) -> None:
        channel = getattr(self, "_channel", None)
        if channel is not None and channel.broken is None:
            channel.close()
        if channel is not None:
            self._close_streams()


class ServedModule(RemoteModule, Closeable):
    """A deployed module, over one connection of its own; a context manager. Made by `connect` with ``serve=``.

    Called like a `RemoteModule`, by any number of threads; the server runs their calls in parallel. Calls raise `Busy`
    where the server is overloaded (call again in a moment), `SessionLost` where it is gone (connect again).
    ``deadline_s`` and a future's ``cancel`` end that one call.

    Attributes
    ----------
    name, version : of the deployment, when this connected. Calls go to the version that replaces it;
        `Deployment.list` has the current one
    info : the server's HELLO
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
        return printable("<served module {} {} at {}:{}>".format(self.name, self.version, *self._session.address))

    def time_evaluator(self, *args: Any, **more: Any) -> TimeEvaluator:
        """Always raises `UsageError`: other clients use the device, too."""
        raise UsageError(_NOT_TIMED)

    def profile(self, *args: Any, **more: Any) -> NoReturn:
        """Always raises `UsageError`, as `time_evaluator`."""
        raise UsageError(_NOT_TIMED)

    @property
    def closed(self) -> Optional[Exception]:
        """The error that ended the connection, or None while it is open."""
        return self._session.closed

    def close(self) -> None:
        """Close the connection. Does nothing the second time."""
        self._session.close()
