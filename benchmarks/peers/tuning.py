"""Candidates of TVM's tuner, measured by its RPCRunner and by rpcsys.tvm.Runner, on boards of TVM's and ours.

``python -m benchmarks.peers.tuning PATH`` compiles the candidate: ``main(x, y, z)``, z = x + y over 256 float32.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tvm.s_tir import meta_schedule as ms

import rpcsys.tvm
from benchmarks.peers import ours, tvm_rpc
from benchmarks.peers.subject import Subject, Trial

LENGTH = 256
#: Candidates of one round: as many as TVM's tuner has by default, and fewer for those that take long.
ROUND, SLOW_ROUND = 64, 8
BOARDS = 4
#: Milliseconds of a candidate on a simulated board, whose core the others share: it sleeps.
SIMULATED_MS = 20
SIMULATED = """
#include <unistd.h>
int __tvm_ffi_main(void *self, const void *args, int count, void *result) { usleep(MICROSECONDS); return 0; }
"""
CONFIG = ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=0)


class Tuning(Subject):
    """A tracker and a board; a round of candidates takes one run."""

    def start(self) -> None:
        self.port = ours.start_lab(self, ours.PLAIN_SERVER)

    @contextmanager
    def candidates(self) -> Iterator[Trial]:
        """Candidates of a few hundred nanoseconds: the time is what is around them."""
        with self.runner() as runner:
            yield rounds(runner, compiled(self.place.folder), ROUND)

    def runner(self, **options: Any) -> rpcsys.tvm.Runner:
        where = ("127.0.0.1", self.port)
        return rpcsys.tvm.Runner(ours.KEY, where, evaluator_config=CONFIG, store=None, **options)


class SimulatedBoards(Tuning):
    """A tracker and several boards on one core, whose candidates sleep."""

    def start(self) -> None:
        self.port = self.start_server(ours.TRACKER)
        for number in range(BOARDS):
            name = ("--name", f"board{number}")
            self.start_server((*ours.PLAIN_SERVER, "--tracker", f"127.0.0.1:{self.port}", *name))

    @contextmanager
    def boards(self, number: int) -> Iterator[Trial]:
        """As many candidates for each board, on so many boards."""
        with self.runner(boards=number) as runner:
            trial = rounds(runner, simulated(self.place.folder), number * ROUND // BOARDS)
            while runner.boards < number:
                trial.once()
            yield trial


class TvmTuning(Tuning):
    """TVM's RPCRunner with its defaults, which use one worker process, on TVM's tracker and server."""

    server_arguments = tvm_rpc.TvmLease.server_arguments
    start = Subject.start

    @contextmanager
    def candidates(self) -> Iterator[Trial]:
        where = ms.runner.RPCConfig("127.0.0.1", self.port, ours.KEY, session_timeout_sec=60)
        yield rounds(ms.runner.RPCRunner(where, CONFIG), compiled(self.place.folder), SLOW_ROUND)


class TvmTuningOfOurs(TvmTuning):
    """The same runner on our tracker and server."""

    start = Tuning.start


def rounds(runner: Any, path: Path, count: int) -> Trial:
    """Rounds of so many candidates. Raises AssertionError for one that fails."""
    spec = ms.arg_info.TensorInfo("float32", (LENGTH,))
    inputs = [ms.runner.RunnerInput(str(path), "cpu", [spec] * 3) for _ in range(count)]

    def run() -> None:
        for future in runner.run(inputs):
            error = future.result().error_msg
            assert error is None, error

    run()  # opens what stays open
    return Trial(run, times=count)


def compiled(folder: Path) -> Path:
    """The candidate, compiled once by a process of its own: LLVM's threads stay out of the measured one."""
    path = folder / "tuned.so"
    if not path.exists():
        subprocess.run([sys.executable, "-m", "benchmarks.peers.tuning", str(path)], check=True)
    return path


def simulated(folder: Path) -> Path:
    """The candidate that sleeps."""
    path = folder / "simulated.so"
    source = SIMULATED.replace("MICROSECONDS", str(SIMULATED_MS * 1000))
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(path), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def main() -> None:
    import tvm
    from tvm import te

    x, y = (te.placeholder((LENGTH,), "float32", name=name) for name in "xy")
    z = te.compute((LENGTH,), lambda i: x[i] + y[i], name="z")
    module = tvm.IRModule({"main": te.create_prim_func([x, y, z])})
    tvm.compile(module, target="llvm").export_library(sys.argv[1])


if __name__ == "__main__":
    main()
