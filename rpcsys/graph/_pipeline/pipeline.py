"""Runs stages side by side, each in its own threads, while frames pass through them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias

from rpcsys.client import spans
from rpcsys.client.spans import FutureSpan
from rpcsys.errors import FrameError, UsageError, one_line
from rpcsys.graph._build.leased_module import LeasedModule
from rpcsys.graph._ir.stage import Stages
from rpcsys.graph._pipeline.board_report import BoardReports
from rpcsys.graph._pipeline.resolve import Given, resolve
from rpcsys.graph._pipeline.results import results, results_async
from rpcsys.graph._pipeline.scheduler import Action, FrameScheduler, StartStage
from rpcsys.graph._pipeline.stats import PipelineFigures, PipelineStats, StageRun, size, with_progress
from rpcsys.graph._pipeline.topology import Function, PipelineStage, Topology, named_results
from rpcsys.module import Module
from rpcsys.module.stage_errors import failing

#: One frame: tensors by name, a tuple of them in the order of the pipeline's inputs, or the one input itself.
Frame: TypeAlias = Any
Future: TypeAlias = "concurrent.futures.Future[Any]"

_END_TIMEOUT_S = 5.0  # seconds for a thread to end after its device's session was closed


class _Job(NamedTuple):
    start: StartStage
    args: Sequence[Any]
    span: FutureSpan


@dataclass
class _FrameInFlight:
    """A frame in the pipeline: its tensors so far, and how many stages will still take each."""

    future: Future
    values: dict[str, Any]
    uses: Counter[str]
    by_name: bool
    span: FutureSpan

    def take(self, names: Iterable[str]) -> list[Any]:
        """The tensors of those names; a tensor that no stage needs any more is released."""
        taken = [self.values[name] for name in names]
        self.uses.subtract(names)
        for name in names:
            if not self.uses[name]:
                self.values.pop(name, None)
        return taken


class Pipeline:
    """Runs the stages of a model at the same time, each on another frame.

    A stage runs in a thread of its own (one for each replica), and starts a frame as soon as its inputs are ready. At
    most ``queue`` frames wait between two stages. Results come in the order of the frames. Tensors pass from stage to
    stage without copies.

    Parameters
    ----------
    stages : the result of `graph.split` or `graph.partition`; or a module of `graph.build`, exported and loaded or not;
        or each stage as a `PipelineStage` or a tuple ``(name, module, inputs, outputs)``, in any order
    targets : for stages of `split`, as for `graph.build`; by name also any function, such as a session's module
    inputs, outputs : the whole's tensors, for stages given one by one; by default those without a maker or a taker
    cpus, replicas : by stage name: the CPUs its threads are bound to, and how many threads run it. Stages of `split`
        that onnxruntime runs share the remaining CPUs, unless their targets name CPUs or threads
    queue : frames that may wait between two stages

    ``inputs`` and ``outputs`` are the names of the whole's tensors, ``limit`` is how many frames can be under way. As a
    context manager it closes itself. Raises `UsageError` for stages that do not fit together and CPUs that the process
    does not have, and what `graph.build` raises.
    """

    def __init__(
        self,
        stages: Stages | Module | Iterable[Given],
        targets: Any = None,
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        cpus: Mapping[str, Sequence[int]] | None = None,
        replicas: Mapping[str, int] | None = None,
        queue: int = 2,
    ) -> None:
        if not isinstance(queue, int) or queue < 1:
            raise UsageError(f"a queue of {queue!r} lets nothing pass; queue is 1 or more")
        made = resolve(stages, targets, inputs, outputs, cpus or {}, replicas or {})
        self._owned = made.owned
        try:
            self._topology = Topology(made.stages, made.inputs, made.outputs)
            for module in dict.fromkeys(each for stage in self._topology.stages for each in stage.functions):
                if isinstance(module, LeasedModule):
                    module.lease()  # now: without a device the pipeline fails here, and not every frame
        except BaseException:
            _close(self._owned)
            raise
        self.inputs, self.outputs = self._topology.inputs, self._topology.outputs
        self._stats = PipelineStats({node.name: node.replicas for node in self._topology.nodes})
        self._recorder = spans.recorder()
        self._boards = BoardReports(self._topology.stages)
        self._failed_inside = Counter[str]()  # frames that failed, by the stage inside a call
        self._scheduler = FrameScheduler(self._topology.nodes, queue)
        self.limit = self._scheduler.limit
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._frames: dict[int, _FrameInFlight] = {}
        self._count = 0
        self._closed = False
        self._stages = {stage.name: stage for stage in self._topology.stages}
        self._jobs: dict[tuple[str, int], SimpleQueue[_Job | None]] = {}
        self._threads: list[threading.Thread] = []
        for stage in self._topology.stages:
            for replica, function in enumerate(stage.functions):
                jobs = self._jobs[stage.name, replica] = SimpleQueue()
                name, args = f"{stage.name} #{replica}", (stage, replica, function, jobs)
                self._threads.append(threading.Thread(target=self._work, args=args, name=name, daemon=True))
                self._threads[-1].start()

    def __repr__(self) -> str:
        return f"<pipeline of {', '.join(self._stages)}>"

    def submit(self, frame: Frame) -> Future:
        """Put a frame in. It waits while the pipeline is full: do not call it from a future's callback.

        The future's result has the form of the frame: by name for a mapping, else the one output, or a tuple of them.
        Its error is a `FrameError`. Cancelling the future drops the frame. Raises `UsageError` after `close`, and for a
        frame whose tensors are not the inputs.
        """
        feeds = self._topology.feeds(frame)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._scheduler.has_capacity)
            return self._admit(feeds, isinstance(frame, Mapping))

    def run(self, frames: Iterable[Frame], *, stop_on_error: bool = False, progress: bool = False) -> Iterator[Any]:
        """Yield the result of each of ``frames``, in their order.

        A thread takes the frames, at most `limit` ahead of the results. A frame that fails yields its `FrameError`;
        ``stop_on_error`` raises it. Ending the loop early cancels the frames under way. ``progress`` shows a bar if
        standard error is a terminal.
        """
        outcomes = results(self._recorder.bound(self.submit), frames, self.limit, stop_on_error)
        return with_progress(outcomes, frames, self._stats.now) if progress else outcomes

    def run_async(
        self, frames: Iterable[Frame] | AsyncIterable[Frame], *, stop_on_error: bool = False
    ) -> AsyncIterator[Any]:
        """`run` for an event loop, without blocking it; ``frames`` may be an asynchronous iterable."""
        return results_async(self._recorder.bound(self.submit), self._submit_async, frames, self.limit, stop_on_error)

    async def _submit_async(self, frame: Frame) -> Future:
        feeds = self._topology.feeds(frame)
        with self._changed:
            if self._closed or self._scheduler.has_capacity:
                return self._admit(feeds, isinstance(frame, Mapping))
        return await asyncio.to_thread(self.submit, frame)

    def _admit(self, feeds: dict[str, Any], by_name: bool) -> Future:
        """Admit a frame; the caller holds the lock and has checked the capacity."""
        if self._closed:
            raise UsageError("the pipeline was closed; make a new one")
        number = self._count
        self._count += 1
        future: Future = concurrent.futures.Future()
        future.add_done_callback(functools.partial(self._dropped, number))
        span = self._recorder.of_future("frame", {"rpcsys.frame": number}, future)
        self._frames[number] = _FrameInFlight(future, feeds, Counter(self._topology.uses), by_name, span)
        self._act(self._scheduler.admit(number))
        return future

    def _dropped(self, number: int, future: Future) -> None:
        """Called when a future is done; if it was cancelled, drop its frame."""
        if not future.cancelled():
            return
        with self._changed:
            frame = self._frames.pop(number, None)
            if frame is not None:
                self._act(self._scheduler.drop(number))
        if frame is not None:
            future.set_running_or_notify_cancel()

    def _work(self, stage: PipelineStage, replica: int, function: Function, jobs: SimpleQueue[_Job | None]) -> None:
        cpus = stage.cpus
        idle_since = time.perf_counter()
        while (job := jobs.get()) is not None:
            began = time.perf_counter()
            self._stats.begin(stage.name, began)
            made: dict[str, Any] = {}
            error: BaseException | None = None
            try:
                if cpus:
                    os.sched_setaffinity(0, cpus)  # of this thread only
                    cpus = ()
                with job.span.inside(f"stage {stage.name}"):
                    made = named_results(stage, function(*job.args))
            except BaseException as problem:  # noqa: BLE001 - it becomes the frame's error
                error = problem
            ended = time.perf_counter()
            text = "" if error is None else _error_text(error)
            nbytes = size(made.values())
            self._stats.add(StageRun(stage.name, replica, job.start.frame, idle_since, began, ended, nbytes, text))
            idle_since = ended
            if error is None:
                self._done(job.start, made)
            else:
                self._failed(job.start, error)
            del job, made, error  # or they would be held until the next frame comes

    def _done(self, run: StartStage, made: Mapping[str, Any]) -> None:
        with self._changed:
            frame = self._frames.get(run.frame)
            if frame is not None:
                frame.values.update((name, value) for name, value in made.items() if frame.uses[name])
            ended = self._act(self._scheduler.ended(run))
        for each in ended:
            if each.future.set_running_or_notify_cancel():
                named = {name: each.values[name] for name in self.outputs}
                values = tuple(named.values())
                each.future.set_result(named if each.by_name else values[0] if len(values) == 1 else values)

    def _failed(self, run: StartStage, cause: BaseException) -> None:
        with self._changed:
            frame = self._frames.pop(run.frame, None)
            self._act(self._scheduler.ended(run, failed=True))
        if frame is not None and frame.future.set_running_or_notify_cancel():
            inside = failing(cause, self._stages[run.stage].members)
            self._failed_inside[inside] += 1
            stage = inside or run.stage
            text = f"frame {run.frame} failed in stage {stage!r}: {_error_text(cause)}"
            error = FrameError(text, frame=run.frame, stage=stage)
            error.__cause__ = cause
            frame.future.set_exception(error)

    def _act(self, actions: Iterable[Action]) -> list[_FrameInFlight]:
        """Start the stages that can start; return the finished frames. The caller holds the lock."""
        finished = []
        for action in () if self._closed else actions:
            if isinstance(action, StartStage):
                frame = self._frames[action.frame]
                args = frame.take(self._stages[action.stage].inputs)
                self._jobs[action.stage, action.replica].put(_Job(action, args, frame.span))
            else:
                finished.append(self._frames.pop(action.frame))
        self._changed.notify_all()
        return finished

    def figures(self) -> PipelineFigures:
        """Counters of each stage so far: frames, seconds busy, active and waiting, bytes.

        Stages that are one call on a leased board have a row each, with the seconds that the board reports of their
        devices, and one of the call, called by their names: ``stage1+stage2``.
        """
        calls = self._stats.now()
        return PipelineFigures({**calls, **self._boards.figures(calls, self._failed_inside)})

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write when each stage ran (the newest 65,536 runs) as JSON for https://ui.perfetto.dev.

        It has a row for each device of a leased board that reports when its devices worked. Raises `UsageError` for a
        path that cannot be written.
        """
        self._stats.save_trace(path, self._boards.rows(self._stats.runs()))

    def close(self, timeout_s: float = 10.0) -> None:
        """Cancel all frames and end the threads. A second call does nothing.

        It waits for running calls, at most ``timeout_s`` seconds. Then it closes the sessions that the pipeline leased,
        and a `RuntimeWarning` names the stages whose functions still do not return. It closes the modules that the
        pipeline built, and leaves open those it was given.
        """
        with self._changed:
            first, self._closed = not self._closed, True
            left = list(self._frames.values())
            self._frames.clear()
            self._changed.notify_all()
        for frame in left:
            if frame.future.cancel():
                frame.future.set_running_or_notify_cancel()
        if first:
            for jobs in self._jobs.values():
                jobs.put(None)
        self._join(timeout_s)
        _close(self._owned)
        hung = self._join(_END_TIMEOUT_S)
        if hung:
            text = f"{', '.join(hung)} did not return within {timeout_s:g} s; left running"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _join(self, timeout_s: float) -> list[str]:
        """Wait for the threads; return the names of those still running."""
        deadline = time.monotonic() + timeout_s
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in others if thread.is_alive()]

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


def _close(modules: Iterable[Module]) -> None:
    for module in modules:
        module.close()


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}"
