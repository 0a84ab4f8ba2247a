"""Asks the drivers of this board, all at once, each in a process of its own that ends after `LIMIT_S` seconds."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from rpcsys.ffi import library
from rpcsys.server.devices import board, describing
from rpcsys.server.devices.describing import Devices
from rpcsys.server.sandbox import launch

LIMIT_S = 5.0  # the first use of a driver may load its firmware, or compile its kernels
MAX_BYTES = 1 << 18  # of an answer
_TVM = "tvm"
_FUNCTIONS = {"rocm": ("cuda", "find_rocm"), _TVM: ("tvm_runtime", "find")}  # else `find` of the module of that name


class DriverQuestion(NamedTuple):
    """What one process is asked: to call a function of a module of this package."""

    what: str  # for people
    arguments: List[Any]


def questions(
    wanted: Optional[Sequence[str]], tvm_library: Optional[str], libraries: Sequence[str]
) -> Dict[str, DriverQuestion]:
    """The questions by name: the kinds of devices whose driver is here, then what TVM's runtime knows of them.

    ``wanted``: the kinds to look for, None for all; the others as the server's flags.
    """
    here = {kind: path for kind, path in board.drivers().items() if wanted is None or kind in wanted}
    asked = {kind: DriverQuestion(f"the driver of {kind} ({path})", [path]) for kind, path in here.items()}
    if asked and library.find(tvm_library) is not None:
        arguments = [tvm_library, list(libraries), [kind for kind in here if kind != "openvino"]]
        asked[_TVM] = DriverQuestion("TVM's runtime", arguments)
    return asked


class _Asked(NamedTuple):
    name: str
    question: DriverQuestion
    pid: int
    data: bytearray


class DriverSearch:
    """The processes that are asked. ``problems``: a line for each driver that did not answer."""

    def __init__(self, asked: Mapping[str, DriverQuestion], npus: bool = True) -> None:
        self._npus = npus  # whether to look for these, too
        self.problems: List[str] = []
        self._answers: Dict[str, Any] = {}
        self._asked: Dict[int, _Asked] = {}  # by the pipe of the answer
        self._ended: List[int] = []
        self._epoll = select.epoll()
        for name, question in asked.items():
            self._ask(name, question)

    def _ask(self, name: str, question: DriverQuestion) -> None:
        module, function = _FUNCTIONS.get(name, (name, "find"))
        settings = {"module": module, "function": function, "arguments": question.arguments, "parent": os.getpid()}
        reading, writing = os.pipe()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            pid = launch.start(
                "rpcsys.server.devices.probe", settings, writing, "rpcsys-devices", leader=True, printing=nowhere
            )
        except OSError as error:
            os.close(reading)
            self._note(question, f"was not asked: {error.strerror}")
            return
        finally:
            os.close(writing)
            os.close(nowhere)
        self._asked[reading] = _Asked(name, question, pid, bytearray())
        self._epoll.register(reading, select.EPOLLIN)

    @property
    def over(self) -> bool:
        """Whether no answer is missing."""
        return not self._asked

    def fileno(self) -> int:
        """Readable when `advance` has something to read."""
        return self._epoll.fileno()

    def advance(self, wait_s: float = 0.0) -> None:
        """Read what has arrived, after at most ``wait_s`` seconds."""
        for pipe, _ in self._epoll.poll(wait_s):
            asked = self._asked[pipe]
            data = os.read(pipe, 65536)
            asked.data.extend(data)
            if not data:
                self._end(pipe, "ended its process without an answer")
            elif len(asked.data) > MAX_BYTES:
                self._end(pipe, "answered too much")

    def wait(self) -> None:
        """Block until all have answered, at most for `LIMIT_S` seconds; then end it."""
        until = time.monotonic() + LIMIT_S
        while not self.over and (left := until - time.monotonic()) > 0:
            self.advance(left)
        self.close()

    def give_up(self) -> None:
        """Kill the processes that have not answered."""
        for pipe in list(self._asked):
            self._end(pipe, f"did not answer in {LIMIT_S:g} s")

    def _end(self, pipe: int, otherwise: str) -> None:
        asked = self._asked.pop(pipe)
        self._epoll.unregister(pipe)
        os.close(pipe)
        with contextlib.suppress(OSError):
            os.killpg(asked.pid, signal.SIGKILL)
        self._ended.append(asked.pid)
        try:
            answer = json.loads(asked.data)
            if "error" not in answer:
                self._answers[asked.name] = answer["found"]
                return
            otherwise = f"failed: {answer['error']}"
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        self._note(asked.question, otherwise)

    def _note(self, question: DriverQuestion, what: str) -> None:
        self.problems.append(f"{question.what} {' '.join(what.split())[:300]}: its devices are left out")

    def collect(self) -> bool:
        """Collect processes that have ended; whether all have. One may be held by the kernel for long."""
        self._ended = [pid for pid in self._ended if not _is_gone(pid)]
        return not self._ended

    def devices(self) -> Devices:
        """What the drivers that have answered, and this board's files, tell."""
        said = self._answers.get(_TVM)
        tvm = frozenset(kind for kind in said if isinstance(kind, str)) if isinstance(said, list) else frozenset()
        answers: Dict[str, Any] = {"cpu": [board.cpu()], board.NPU: board.npus() if self._npus else []}
        answers.update((kind, self._answers[kind]) for kind in board.DRIVERS if kind in self._answers)
        return describing.describe(answers, lambda kind: board.loaders(kind, tvm))

    def close(self) -> None:
        """Kill what is left."""
        self.give_up()
        self._epoll.close()


def _is_gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # collected elsewhere
        return True
