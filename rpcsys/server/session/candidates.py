"""Measures the candidates of an auto-tuner: one call loads a library, times a function of it, and drops it.

Where TVM's runtime is, its own evaluator measures, whose loop is native. Elsewhere a loop here follows the same rules;
its calls go through ctypes, which adds about half a microsecond to each.
Known weakness: a library's file stays until the session ends, and without TVM's runtime the library stays loaded, too.
So a client opens another session now and then.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import struct
import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from rpcsys.errors import RemoteArgumentError, RemoteFunctionError
from rpcsys.ffi import library
from rpcsys.module.placement import HOST
from rpcsys.server.session.candidate_arguments import Arguments, specs_of
from rpcsys.server.session.directory import Directory, file_errors
from rpcsys.wire import device_names
from rpcsys.wire.checks import shown

MAX_NUMBER = 10_000_000  # calls that are timed together
MAX_RESULTS = 30_000  # of one candidate: one head returns them all
MAX_MS = 3_600_000
MAX_COPIES = 1000  # of the arguments
#: After so many measurements without any time TVM's evaluator gives up reaching ``min_repeat_ms``.
_ZEROS = 100
#: The factor by which it raises the number of calls that took too little time together, at least.
_GROWTH = 1.618
#: TVM's function that removes all arguments but the first from the CPU's caches.
_FLUSH = "cache_flush_cpu_non_first_arg"
#: Bytes that replace the contents of the caches, where their size is unknown, and at most.
_CACHES, _MAX_CACHES = 32 << 20, 256 << 20


class Evaluation(NamedTuple):
    """How to measure, as TVM's EvaluatorConfig says it.

    After one call that is not timed, ``number`` calls are timed together, ``repeat`` times; more if they take less than
    ``min_repeat_ms``. ``cooldown_ms`` pass after each of these. ``flush_caches``: before each, the arguments are
    removed from the CPU's caches. All of it is done with ``copies`` of the arguments.
    """

    number: int = 3
    repeat: int = 1
    min_repeat_ms: int = 100
    cooldown_ms: int = 0
    copies: int = 1
    flush_caches: bool = False


_MOST = {
    "number": MAX_NUMBER, "repeat": MAX_RESULTS, "min_repeat_ms": MAX_MS, "cooldown_ms": MAX_MS, "copies": MAX_COPIES,
}  # fmt: skip


def evaluation(options: Dict[str, Any]) -> Evaluation:
    """The `Evaluation` with these fields. Raises `RemoteArgumentError` for one out of range, or unknown."""
    wanted = Evaluation(**{name: options[name] for name in Evaluation._fields if name in options})
    unknown = sorted(map(str, options.keys() - set(Evaluation._fields)))
    if unknown:
        raise RemoteArgumentError(f"this server measures candidates without {', '.join(unknown)[:200]}; update it")
    for name, most in _MOST.items():
        value, least = getattr(wanted, name), 0 if name.endswith("_ms") else 1
        if type(value) is not int or not least <= value <= most:
            raise RemoteArgumentError(f"{name} must be a whole number from {least} to {most}, not {shown(value)}")
    if wanted.repeat * wanted.copies > MAX_RESULTS:
        raise RemoteArgumentError(f"a candidate has at most {MAX_RESULTS} results; lower repeat or copies")
    return wanted._replace(flush_caches=wanted.flush_caches is True)


class Candidates:
    """Measures candidates in one session; their libraries are files of its ``directory``."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._arguments = Arguments()

    def measure(
        self, code: Any, function: str, arguments: Sequence[Any], options: Dict[str, Any], device: str = HOST
    ) -> Dict[str, Any]:
        """The ``results`` of a library's ``function``, called with arrays: mean seconds of one call, for each repeat.

        ``code`` is the library's file; ``arguments`` are ``[dtype, shape]``; ``options`` the fields of `Evaluation`.
        Raises `ModelError` if it cannot be loaded, `RemoteArgumentError`, `RemoteFileError`, and the function's errors.
        """
        wanted = evaluation(options)
        specs = specs_of(arguments, wanted.copies)
        place = str(device_names.parse(device))
        if place != HOST and not library.has_runtime():
            raise RemoteFunctionError(f"this device has no libtvm_runtime, which measures candidates on {place}")
        path = self._written(code)
        sets = self._arguments.sets(specs, place, wanted.copies)
        by = _by_tvm if library.has_runtime() else _by_loop
        return {"results": by(path, function, sets, wanted, place)}

    def _written(self, code: Any) -> str:
        """The path of a new file. It stays: the linker takes a file with the inode of a library that is still loaded
        for that library, and one that is changed then ends the process.
        """
        path = f"{self._directory.private(0)}-candidate-{next(self._numbers)}.so"
        with file_errors("the candidate"), open(path, "wb") as stream:
            stream.write(code)
        return path


def _by_tvm(path: str, function: str, sets: List[List[Any]], wanted: Evaluation, device: str) -> List[float]:
    """Measure with the evaluator of TVM's runtime, then unload the library."""
    from rpcsys.ffi import device_arrays, tvm
    from rpcsys.ffi.calls import get_global
    from rpcsys.ffi.module import check_symbols
    from rpcsys.module import elf
    from rpcsys.module.kinds import native

    with native.explained("the candidate"):
        native.check(elf.read(path), "the candidate")
        library.load_runtime()
        check_symbols(path)
        loaded = tvm.load_library(path)
    place = device_arrays.device_of(device)
    often = (wanted.number, wanted.repeat, wanted.min_repeat_ms, _ZEROS, wanted.cooldown_ms, 1, 0)
    before = _FLUSH if wanted.flush_caches and device == HOST else ""
    evaluator = get_global("runtime.RPCTimeEvaluator")(loaded.object, function, *place, *often, before)
    results: List[float] = []
    for args in sets:
        results += struct.unpack(f"@{wanted.repeat}d", evaluator(*args))
    return results


def _by_loop(path: str, function: str, sets: List[List[Any]], wanted: Evaluation, _device: str) -> List[float]:
    """Measure with `evaluate`; the library stays loaded."""
    from rpcsys.module.kinds import native

    loaded = native.load(path, "the candidate")
    flush = flusher(cache_bytes()) if wanted.flush_caches else lambda: None
    results: List[float] = []
    for args in sets:
        run = loaded.raw(function).timed(args, time.perf_counter)
        results += evaluate(run, wanted, flush)
    return results


def evaluate(
    run: Callable[[int], float],
    wanted: Evaluation,
    flush: Callable[[], Any] = lambda: None,
    sleep: Callable[[float], Any] = time.sleep,
) -> List[float]:
    """The mean seconds of one call, for each repeat, by the rules of TVM's evaluator (``WrapTimeEvaluator``).

    ``run(number)`` makes so many calls, and returns their seconds.
    """
    run(1)
    number, results = wanted.number, []
    for _ in range(wanted.repeat):
        flush()
        spent, zeros = run(number), 0
        while spent * 1e3 < wanted.min_repeat_ms and zeros < _ZEROS and number < MAX_NUMBER:
            if spent > 0:
                enough = wanted.min_repeat_ms / (spent * 1e3 / number) + 1
                number = min(int(max(enough, number * _GROWTH)), MAX_NUMBER)
            spent = run(number)
            zeros += spent == 0
        results.append(spent / number)
        if wanted.cooldown_ms:
            sleep(wanted.cooldown_ms / 1e3)
    return results


def flusher(size: int) -> Callable[[], None]:
    """A function that replaces what the CPU's caches hold by ``size`` bytes of other memory."""
    source, target = memoryview(bytearray(size)), memoryview(bytearray(size))

    def flush() -> None:
        target[:] = source

    return flush


def cache_bytes(root: str = "/") -> int:
    """Twice the bytes of the CPU's largest cache, as Linux tells it; 32 MiB where it does not, at most 256 MiB."""
    sizes = [0]
    for path in glob.glob(os.path.join(glob.escape(root), "sys/devices/system/cpu/cpu0/cache/index*/size")):
        with contextlib.suppress(OSError, ValueError), open(path) as stream:
            sizes.append(int(stream.read(32).strip().rstrip("K")) << 10)
    return min(2 * max(sizes), _MAX_CACHES) or _CACHES
