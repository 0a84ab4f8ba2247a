"""Settings of all tests."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from rpcsys import stream
from tests import secured

# A machine that does something else at the same time must not fail a test.
settings.register_profile("rpcsys", deadline=None)
settings.load_profile("rpcsys")

# The tests of devices alone ask this machine's drivers: each takes as long as the start of a server.
os.environ.setdefault("RPCSYS_DEVICES", "none")

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", params=["python", "secure-python", "secure-native", "native"])
def speedups(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a module's tests with streams in Python, with those of the C library, and with encrypted ones."""
    native = request.param.endswith("native")
    if native and stream.speedups is None:
        pytest.skip("the C library is not built or not wanted")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream, "SPEEDUPS", native)
        patched.setattr(secured, "secure", request.param.startswith("secure"))
        yield request.param


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """`--reruns` is for live tests alone: only daemons starve beside another program."""
    if item.config.getoption("reruns", None) and item.get_closest_marker("live") is None:
        item.add_marker(pytest.mark.flaky(reruns=0))
