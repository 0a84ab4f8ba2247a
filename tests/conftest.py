"""Settings of all tests."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from rpcsys import stream
from tests import opencl, secured
from tests.time_limits import pytest_runtest_setup, pytest_runtest_teardown, pytest_timeout_set_timer  # noqa: F401

SLOW_S = 400  # the limit of a slow test without one of its own
SHOWN = 2000  # characters of a failure that is printed when it happens

# A machine that does something else at the same time must not fail a test.
settings.register_profile("rpcsys", deadline=None)
settings.load_profile("rpcsys")

# The tests of devices alone ask this machine's drivers: each takes as long as the start of a server.
os.environ.setdefault("RPCSYS_DEVICES", "none")

# What a shell starts in the background ignores Ctrl-C, what nohup starts hang-ups, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


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


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the whole run, the same for all processes of a parallel run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def opencl_library(shared: Path) -> Iterator[Path]:
    """TVM's OpenCL runtime, for ``--load-library``; PoCL is the driver of this process and of its daemons."""
    library = opencl.library()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in opencl.environment(shared / "pocl").items():
            patched.setenv(name, value)
        yield library


@pytest.fixture(scope="session")
def opencl_programs(shared: Path, opencl_library: Path) -> opencl.Programs:
    """Libraries for target "opencl"."""
    return opencl.programs(shared)


class FailuresAtOnce:
    """Prints each failure when it happens: a run that is ended from outside prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.outcome in ("failed", "rerun") and reporter is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = f"{report.outcome}: {report.nodeid}: {crash or report.longreprtext}"
            reporter.write(f"\n{why[:SHOWN]}\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """A test of releases is slow; a slow one has longer; `--reruns` is for live ones alone: only daemons starve."""
    if item.get_closest_marker("release") is not None:
        item.add_marker("slow")
    if item.get_closest_marker("slow") is not None and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(SLOW_S))
    if item.config.getoption("reruns", None) and item.get_closest_marker("live") is None:
        item.add_marker(pytest.mark.flaky(reruns=0))


def pytest_collection(session: pytest.Session) -> None:
    """No garbage collection looks for what collecting tests leaves: twenty thousand of them, and all modules."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Later collections do not look at the tests themselves: that was a quarter of the CPU of live tests."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Turn the garbage collector off during the test, which begins without garbage."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
