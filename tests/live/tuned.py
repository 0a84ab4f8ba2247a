"""Candidates of an auto-tuner in C, which behave in ways that no compiler would make, and runners that measure them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.live.daemons import Daemon

SOURCE = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
const char *mark = "MARK"; /* no two candidates are the same */
int __tvm_ffi_main(void *self, const void *args, int count, void *result) {
  BODY;
  return 0;
}
"""
#: What a candidate does.
BODIES = {
    "well": "",
    "segfault": "*(volatile int *)0 = 1",
    "hang": "for (;;) sleep(1)",
    "exit": "exit(3)",
    "allocate": "for (;;) memset(malloc(1 << 20), 1, 1 << 20)",
    "leave_spoilt": 'setenv("SPOILT", "1", 1)',
    "crash_if_spoilt": 'if (getenv("SPOILT")) abort()',
}
SHAPE = (4,)


def sleeping(milliseconds: float) -> str:
    """The body of a candidate that takes so long."""
    return f"usleep({round(milliseconds * 1000)})"


def compiled(folder: Path, name: str, body: str) -> Path:
    """The library of a candidate."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.so"
    source = SOURCE.replace("MARK", name).replace("BODY", body)
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(path), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def inputs(paths: Sequence[Path], device: str = "llvm", lengths: Sequence[int] = SHAPE) -> list[Any]:
    """What TVM's tuner gives to its runner; an argument of float32 for each of the ``lengths``."""
    from tvm.s_tir import meta_schedule as ms

    specs = [ms.arg_info.TensorInfo("float32", (length,)) for length in lengths]
    return [ms.runner.RunnerInput(str(path), device, specs) for path in paths]


def results(runner: Any, paths: Sequence[Path], *given: Any) -> list[Any]:
    """The results of candidates that are measured together; ``given``: as to `inputs`."""
    return [future.result() for future in runner.run(inputs(paths, *given))]


def config(number: int = 1, repeat: int = 3, min_repeat_ms: int = 0, flush: bool = False) -> Any:
    """How TVM's runners are told to measure."""
    from tvm.s_tir import meta_schedule as ms

    return ms.runner.EvaluatorConfig(number, repeat, min_repeat_ms, flush)


@contextlib.contextmanager
def running(tracker: Daemon, key: str, **options: Any) -> Iterator[Any]:
    """A runner of ours, closed at the end; results are kept nowhere unless ``options`` say so."""
    import rpcsys.tvm

    with rpcsys.tvm.Runner(key, tracker.address, **{"evaluator_config": config(), "store": None, **options}) as runner:
        yield runner
