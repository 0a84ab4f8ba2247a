"""Profiles of onnxruntime: an open model whose session notes its operators, and the reader of what it writes.

Statements about onnxruntime here were found by running 1.32.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from typing import IO, Any, Callable, Iterable, List, Optional

from rpcsys.errors import ProfileNotSupported
from rpcsys.module.profiler import OperatorRun, check_count
from rpcsys.wire.memory import give_back_memory

_SUFFIX = "_kernel_time"  # behind a node's name
_PROVIDER = "ExecutionProvider"
_MAX_LINE = 1 << 20


class ProfileFile:
    """The file into which onnxruntime writes a profile at its end; it has no name once the model is open."""

    def __init__(self, folder: str, open_model: Callable[[str], Any]) -> None:
        """Call ``open_model(prefix)`` with the prefix of the file's name. Raises what that raises, and OSError."""
        with tempfile.TemporaryDirectory(prefix=".rpcsys-profile-", dir=folder) as made:
            self.runner = open_model(os.path.join(made, "onnxruntime"))
            names = sorted(os.listdir(made))  # the name ends with the time; an attempt that failed leaves one, too
            self._file: Optional[IO[str]] = None
            if names:
                path = os.path.join(made, names[-1])
                self._file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115 - `runs` closes it

    def runs(self, skip: int) -> List[List[OperatorRun]]:
        """End the profile, and read the calls behind the first ``skip``. Raises as `Profiler.runs`."""
        self.runner.end_profiling()
        give_back_memory()
        if self._file is None:
            raise ProfileNotSupported("onnxruntime here wrote no profile; install another version of it on the board")
        with self._file as lines:
            return list(calls_in(lines))[skip:]


def calls_in(lines: Iterable[str]) -> Iterable[List[OperatorRun]]:
    """The operators of each call, from the lines of a profile: an event each, those of a call before the call itself.

    Lines that are no event are left out: before 1.32, names with quotes make such. Raises as `check_count`.
    """
    nodes: List[Any] = []
    noted = 0
    for line in lines:
        event = _event(line)
        if event.get("cat") == "Node" and str(event["name"]).endswith(_SUFFIX):
            nodes.append(event)
            noted += 1
            check_count(noted)
        elif event.get("name") == "model_run":
            yield [_operator(node, event["ts"]) for node in nodes]
            nodes = []


def _event(line: str) -> Any:
    """The event of a line; an empty one for a line that has none with a name and times."""
    with contextlib.suppress(ValueError, RecursionError):
        event = json.loads(line.strip().rstrip(",")) if len(line) <= _MAX_LINE else None
        if type(event) is dict and all(_is_time(event.get(each)) for each in ("ts", "dur")) and "name" in event:
            return event
    return {}


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1 << 53


def _operator(event: Any, began: float) -> OperatorRun:
    told = event.get("args")
    args = told if type(told) is dict else {}
    provider = str(args.get("provider", ""))
    return OperatorRun(
        str(event["name"])[: -len(_SUFFIX)], str(args.get("op_name", "")),
        provider[: -len(_PROVIDER)] if provider.endswith(_PROVIDER) else provider,
        _shapes(args.get("input_type_shape")), event["tid"] if type(event.get("tid")) is int else 0,
        max(event["ts"] - began, 0), event["dur"],
    )  # fmt: skip


def _shapes(told: Any) -> str:
    """``float[1,64] float[64]`` of ``[{"float": [1, 64]}, {"float": [64]}]``."""
    listed = told if type(told) is list else []
    pairs = [pair for each in listed if type(each) is dict for pair in each.items()]
    return " ".join("{}[{}]".format(kind, ",".join(map(str, shape))) for kind, shape in pairs if type(shape) is list)
