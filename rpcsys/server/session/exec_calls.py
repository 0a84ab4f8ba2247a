"""The calls that start programs and forward ports, where the server has ``--allow-exec``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from rpcsys.errors import ExecNotAllowed, ProgramError, RemoteArgumentError
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer, Frame

if TYPE_CHECKING:
    from rpcsys.pump import Pump
    from rpcsys.server.session.outgoing import Outgoing
    from rpcsys.server.session.program_groups import ProgramGroups

#: Programs of one session at a time: each has three descriptors and a thread.
MAX_PROGRAMS = 64
NOT_ALLOWED = "this server runs no programs of its clients; start it with --allow-exec if they may"
MODELS_ONLY = "the lab's rules let you load models in ONNX's format only, and run no programs (code = false)"


class ExecCalls:
    """``session.exec`` and ``session.forward``, and the byte streams of both.

    ``refusal``: why they are not allowed; "" if they are. ``groups``: where an attached session notes its programs.
    """

    def __init__(self, out: Outgoing, workdir: str, refusal: str, groups: Optional[ProgramGroups] = None) -> None:
        self._out = out
        self._workdir = workdir
        self._refusal = refusal
        self._groups = groups
        self._pump: Optional[Pump] = None  # few sessions pay for it
        self._programs: Dict[int, Any] = {}

    def take(self, frame: Frame) -> bool:
        """Take a CHUNK of a byte stream; False for another. Never waits. Raises `ProtocolError`."""
        return self._pump is not None and self._pump.take(frame)

    def start(self, id: int, argv: List[Any], how: Dict[str, Any]) -> Dict[str, Any]:
        """Start a program whose streams have ``id``; return its ``pid``.

        ``how``: its ``folder``, in the session's if it is relative; ``environment``, added to the session's; the
        ``size`` of its terminal, if it has one. Raises `ExecNotAllowed`, `ProgramError`, `RemoteArgumentError`.
        """
        pump = self._opened(id)
        from rpcsys.server.session.exec_program import BoardProgram

        folder, added, size = how.get("folder", ""), how.get("environment", {}), how.get("size")
        texts = [*argv, folder, *added, *added.values()] if isinstance(added, dict) else [None]
        if not argv or not all(type(text) is str for text in texts) or not _is_size(size):
            raise RemoteArgumentError("a program is a list of str, with a folder, an environment of str, and a size")
        self._programs = {number: each for number, each in self._programs.items() if each.running}
        if len(self._programs) >= MAX_PROGRAMS:
            raise ProgramError(f"the session runs {MAX_PROGRAMS} programs already; wait for one of them")
        where, environment = os.path.join(self._workdir, folder), {**os.environ, **added}
        program = BoardProgram(pump, id, argv, where, environment, size, self._groups)
        self._programs[id] = program
        return {"pid": program.pid}

    def forward(self, id: int, port: int, reverse: int) -> int:
        """Forward connections to ``port`` of this board, or if ``reverse`` is 1 those to it; return the port.

        Raises `ExecNotAllowed`, `RemoteArgumentError`, `ProgramError` for a port that cannot be listened at.
        """
        pump = self._opened(id)
        from rpcsys.byte_streams import Listener, listening
        from rpcsys.pump import Connecting, only_close

        if not (0 if reverse else 1) <= port <= 0xFFFF:
            raise RemoteArgumentError(f"a port is a number from 1 to 65535, not {port}")
        if not reverse:
            pump.register(id, Connecting(pump, id, port))
            return port
        try:
            listener = listening(port)
        except OSError as error:
            raise ProgramError(f"port {port} of the device: {error.strerror}; choose another one") from None
        pump.register(id, only_close)
        pump.listen(Listener(id, listener))
        return int(listener.getsockname()[1])

    def _opened(self, id: int) -> Pump:
        """The pump, for a new ``id``. Raises `ExecNotAllowed`, `RemoteArgumentError`."""
        if self._refusal:
            raise ExecNotAllowed(self._refusal)
        if not 0 < id <= 0xFFFFFFFF:
            raise RemoteArgumentError("byte streams have an id of four bytes")
        if self._pump is None:
            from rpcsys.pump import Pump

            self._pump = Pump(self._send)
        return self._pump

    def _send(self, id: int, fields: Dict[str, Any], buffers: Sequence[Buffer]) -> None:
        head, _ = frames.encode_head(fields)
        self._out.send(frames.pack(frames.CHUNK, id, head, buffers))


def refusal(options: Dict[str, Any]) -> str:
    """Why a session with these options runs no programs; "" if it does."""
    if not options.get("allow_exec"):
        return NOT_ALLOWED
    return MODELS_ONLY if options.get("models_only") else ""


def _is_size(size: Any) -> bool:
    return size is None or (
        isinstance(size, (list, tuple)) and len(size) == 2 and all(type(n) is int and 0 < n <= 0xFFFF for n in size)
    )
