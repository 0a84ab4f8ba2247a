"""`run` and `run_async` with sources that are slow, endless or broken, and loops that end early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rpcsys.errors import FrameError, UsageError
from rpcsys.graph import Pipeline

DEADLINE_S = 20


def double(x: int) -> int:
    return 2 * x


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    with Pipeline([("s", double, ["x"], ["y"])]) as made:
        yield made


class Camera:
    """A source that releases each frame on command."""

    def __init__(self) -> None:
        self.shots = threading.Semaphore(0)
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        while self.shots.acquire(timeout=DEADLINE_S):
            yield self.taken
            self.taken += 1

    async def slowly(self) -> AsyncIterator[int]:
        while await asyncio.to_thread(self.shots.acquire, timeout=DEADLINE_S):
            yield self.taken
            self.taken += 1


def test_a_result_does_not_wait_for_the_next_frame(pipeline: Pipeline) -> None:
    camera = Camera()
    outputs = pipeline.run(camera)
    for x in range(10):
        camera.shots.release()
        assert next(outputs) == 2 * x
    camera.shots.release()
    outputs.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_a_result_does_not_wait_for_the_next_frame_in_an_event_loop(pipeline: Pipeline, kind: str) -> None:
    camera = Camera()

    async def main() -> None:
        source: Any = camera if kind == "plain" else camera.slowly()
        outputs = pipeline.run_async(source)
        for x in range(10):
            camera.shots.release()
            assert await asyncio.wait_for(anext(outputs), DEADLINE_S) == 2 * x
        camera.shots.release(100)  # more than the pipeline takes ahead: nothing blocks the end of the loop
        await outputs.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_the_event_loop_goes_on_while_a_plain_source_blocks(pipeline: Pipeline) -> None:
    camera = Camera()

    async def main() -> None:
        outputs = pipeline.run_async(camera)
        first = asyncio.ensure_future(anext(outputs))
        await asyncio.sleep(0)  # the source blocks now, and only this loop can release it
        camera.shots.release(2)
        assert await asyncio.wait_for(first, DEADLINE_S) == 0
        await outputs.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def broken() -> Iterator[int]:
    yield 1
    yield 2
    raise OSError("the camera is gone")


async def broken_slowly() -> AsyncIterator[int]:
    for x in broken():
        yield x


def test_an_error_of_the_source_follows_the_earlier_results(pipeline: Pipeline) -> None:
    outputs = pipeline.run(broken())
    assert [next(outputs), next(outputs)] == [2, 4]
    with pytest.raises(OSError, match="the camera is gone"):
        next(outputs)


@pytest.mark.parametrize("source", [broken, broken_slowly])
def test_an_error_of_the_source_follows_the_earlier_results_in_an_event_loop(pipeline: Pipeline, source: Any) -> None:
    async def main() -> list[int]:
        outputs = pipeline.run_async(source())
        found = [await anext(outputs), await anext(outputs)]
        with pytest.raises(OSError, match="the camera is gone"):
            await anext(outputs)
        return found

    assert asyncio.run(main()) == [2, 4]


def test_a_wrong_frame_and_an_invalid_source(pipeline: Pipeline) -> None:
    outputs = pipeline.run([1, (2, 3)])
    assert next(outputs) == 2
    with pytest.raises(UsageError, match=r"a frame is 1 tensor\(s\)"):
        next(outputs)
    with pytest.raises(TypeError, match="not iterable"):
        next(pipeline.run(5))  # type: ignore[arg-type]


def test_a_loop_that_ended_early_takes_no_more_frames() -> None:
    gate = threading.Event()
    taken: list[int] = []

    def frames() -> Iterator[int]:
        for x in range(1000):
            taken.append(x)
            yield x

    def held(x: int) -> int:
        assert x == 0 or gate.wait(DEADLINE_S)
        return x

    with Pipeline([("s", held, ["x"], ["y"])]) as pipeline:
        outputs = pipeline.run(frames())
        assert next(outputs) == 0
        outputs.close()  # type: ignore[attr-defined]
        assert len(taken) <= 1 + pipeline.limit
        gate.set()
        assert pipeline.submit(7).result(DEADLINE_S) == 7


def test_a_source_that_blocks_does_not_delay_the_loops_end(pipeline: Pipeline) -> None:
    camera = Camera()
    camera.shots.release()
    outputs = pipeline.run(camera)
    assert next(outputs) == 0
    leaving = threading.Thread(target=outputs.close)  # type: ignore[attr-defined]
    leaving.start()
    leaving.join(DEADLINE_S / 2)
    assert not leaving.is_alive()
    camera.shots.release()


def test_stop_on_error_ends_the_loop() -> None:
    def refuse(x: int) -> int:
        if x == 2:
            raise ValueError("two")
        return x

    with Pipeline([("s", refuse, ["x"], ["y"])]) as pipeline:
        kept = list(pipeline.run(range(4)))
        assert [kept[0], kept[1], kept[3]] == [0, 1, 3]
        assert isinstance(kept[2], FrameError)
        outputs = pipeline.run(range(4), stop_on_error=True)
        assert [next(outputs), next(outputs)] == [0, 1]
        with pytest.raises(FrameError, match="two"):
            next(outputs)
