"""One trace from the request for a board to the calls on it, with real trackers and servers."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import rpcsys
from rpcsys import compiled
from rpcsys.client.calls import Channel
from rpcsys.errors import RemoteFunctionError, RpcsysError, UnknownKey
from tests.live.daemons import wait_free, wait_until
from tests.spans import Recorded, recorded  # noqa: F401 (a fixture)

trace = pytest.importorskip("opentelemetry.trace")
KEY = "board"


@pytest.fixture(scope="module")
def running(module_daemons):
    daemons = module_daemons()
    tracker = daemons.tracker()
    for count in (1, 2):
        daemons.server(KEY, "--tvm", "off", "--allow-pickle", tracker=tracker, offers=count)
    return tracker


@pytest.fixture
def tracker(running, recorded):  # noqa: F811
    with rpcsys.connect_tracker(running.address, user="ann") as mine:
        yield mine
    wait_free(running, KEY, 2, 30)


@pytest.fixture
def tracer():
    return trace.get_tracer("the user's")


def names(recorded: Recorded) -> dict[str, set[str]]:  # noqa: F811
    """The names of the spans, with those of their parents."""
    found = recorded.counts
    return {name: {recorded.parent(span) for span in recorded.spans(name)} for name in found}


def test_a_users_span_holds_lease_session_and_calls(tracker, tracer, recorded):  # noqa: F811
    with tracer.start_as_current_span("work"), tracker.request(KEY) as session:
        sleep, echo = session.get_function("testing.sleep"), session.get_function("testing.echo")
        sleep(0.05)
        assert list(echo.map(range(20))) == list(range(20))
        assert [future.result() for future in [echo.submit(number) for number in range(5)]] == list(range(5))
        assert echo(np.zeros(4, np.float32)).shape == (4,)
        running, waiting = sleep.submit(0.2), sleep.submit(60)
        assert waiting.cancel()
        running.result()
        with pytest.raises(RemoteFunctionError):
            session.get_function("testing.nothing")
    assert names(recorded) == {
        "work": {""},
        "lease": {"work"},
        "queue": {"lease"},
        "session.open": {"lease"},
        "call session.has_function": {"work"},
        "call testing.sleep": {"work"},
        "call testing.echo": {"work"},
        "run": {"call session.has_function", "call testing.sleep", "call testing.echo"},
    }
    assert len(recorded.traces) == 1
    assert (recorded.counts["call testing.echo"], recorded.counts["call session.has_function"]) == (26, 3)
    slept = recorded.spans("call testing.sleep")
    run = next(span for span in recorded.spans("run") if span.parent.span_id == slept[0].context.span_id)
    assert 50e6 <= run.end_time - run.start_time <= slept[0].end_time - slept[0].start_time
    about = slept[0].attributes
    assert (about["rpcsys.lease"], about["rpcsys.key"]) == (session.lease["lease"], KEY)
    assert (about["server.port"], about["rpc.method"]) == (session.address[1], "testing.sleep")
    failed = {span.name: span.status.description for span in recorded.spans("call session.has_function")}
    assert "testing.nothing" in failed["call session.has_function"]
    cancelled = [span.status.description for span in slept if not span.status.is_ok]
    assert cancelled == ["Cancelled: the call was cancelled"]


def test_without_a_users_span_lease_session_and_calls_are_one_trace(tracker, recorded):  # noqa: F811
    with tracker.request(KEY) as session:
        session.get_function("testing.echo")(1)
        carried = session.run(rpcsys.server.traceparent)
        sleeping = session.get_function("testing.sleep").submit(60)
    assert names(recorded)["call testing.echo"] == {"session.open"}
    assert names(recorded)["lease"] == {""}
    context = recorded.one("call session.run").context
    assert carried == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert len(recorded.traces) == 1
    with pytest.raises(RpcsysError):
        sleeping.result()
    (ended,) = recorded.spans("call testing.sleep")
    assert ended.status.description.startswith("SessionClosed: ")


def test_a_request_that_fails_has_its_error(tracker, recorded):  # noqa: F811
    with pytest.raises(UnknownKey):
        tracker.request("bord")
    for name in ("lease", "queue"):
        assert recorded.one(name).status.description.startswith("UnknownKey: ")
        assert recorded.one(name).attributes["rpcsys.key"] == "bord"


def test_without_tracing_a_session_is_what_it_was(tracker, recorded):  # noqa: F811
    rpcsys.tracing.disable()
    with tracker.request(KEY) as session:
        assert session.get_function("testing.echo")(1) == 1
        assert session.run(rpcsys.server.traceparent) == ""
        assert type(session._channel) is Channel
        assert (session._exchange is None) is (compiled.speedups is None)
    assert not recorded.counts


def test_tasks_have_their_own_spans(tracker, tracer, recorded):  # noqa: F811
    async def call(session, number):
        with tracer.start_as_current_span(f"task {number}"):
            echo = await session.get_function("testing.echo")
            assert await echo(number) == number

    async def main():
        address = "{}:{}".format(*tracker.address)
        async with await rpcsys.aio.connect_tracker(address) as mine:
            with tracer.start_as_current_span("work"):
                async with await mine.request(KEY) as session:
                    await asyncio.gather(*(call(session, number) for number in range(3)))

    asyncio.run(main())
    tasks = {f"task {number}" for number in range(3)}
    assert names(recorded)["call testing.echo"] == tasks
    assert names(recorded)["call session.has_function"] == tasks
    assert names(recorded)["lease"] == {"work"}
    assert len(recorded.traces) == 1


def test_a_pipeline_over_two_servers_is_one_trace(tracker, tracer, recorded):  # noqa: F811
    with tracker.request(KEY) as first, tracker.request(KEY) as second:
        stages = [
            ("near", first.get_function("testing.echo"), ["x"], ["y"]),
            ("far", second.get_function("testing.echo"), ["y"], ["z"]),
        ]
        with rpcsys.graph.Pipeline(stages) as pipeline:
            recorded.clear()
            with tracer.start_as_current_span("work"):
                frames = [np.full(3, number, np.float32) for number in range(4)]
                assert [int(result[0]) for result in pipeline.run(frames)] == list(range(4))
            wait_until(lambda: recorded.counts["frame"] == 4, 30, "the frames' spans")
    assert names(recorded) == {
        "work": {""},
        "frame": {"work"},
        "stage near": {"frame"},
        "stage far": {"frame"},
        "call testing.echo": {"stage near", "stage far"},
        "run": {"call testing.echo"},
    }
    assert len(recorded.traces) == 1
    assert recorded.counts["stage near"] == recorded.counts["stage far"] == 4
    ports = {recorded.parent(span): span.attributes["server.port"] for span in recorded.spans("call testing.echo")}
    assert ports == {"stage near": first.address[1], "stage far": second.address[1]}
