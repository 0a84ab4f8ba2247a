"""Fixtures of the tests that start daemons."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rpcsys
from rpcsys import stream
from rpcsys.pack import build
from tests.live import board_commands, invariant, lab_checks
from tests.live.artefacts import Artefacts, compiled
from tests.live.board_cli import BoardCli
from tests.live.daemons import Daemon, Daemons
from tests.live.fault_lab import KINDS, FaultLab
from tests.live.lab_site import LabSite
from tests.live.once import once
from tests.live.ways import DEFAULT, SECURE

#: Modules whose tests run with the C library, and, so marked, without it: those that use streams in one plain way are
#: for releases.
BOTH_PATHS = {
    **dict.fromkeys(("test_sessions", "test_shared_connections", "test_served", "test_offload"), "slow"),
    **dict.fromkeys(("test_uploads", "test_interrupts", "test_asyncio", "test_slow_clients"), "slow"),
    **dict.fromkeys(("test_unread_clients", "test_flooded_logs"), "slow"),
    **dict.fromkeys(("test_corpus", "test_errors_for_people", "test_contained", "test_native"), "release"),
    **dict.fromkeys(("test_clean_board", "test_behind_proxies"), "release"),
}
#: Tests of several minutes each, the longest one first.
LONG = ("test_one_round", "test_a_hundred_faults", "test_thirty_faults", "test_chaos", "test_killed_under_load")
SHOWN_BYTES = 8000  # the end of a daemon's standard error, shown where a test fails


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the modules of `BOTH_PATHS` with the C library, and with this mark without it."""
    mark = BOTH_PATHS.get(metafunc.module.__name__.rpartition(".")[2])
    if mark is not None:
        paths = ["native", pytest.param("python", marks=getattr(pytest.mark, mark))]
        one = metafunc.definition.get_closest_marker("one_path") is not None
        metafunc.parametrize("speedups", paths[:1] if one else paths, indirect=True, scope="module")


@pytest.fixture(autouse=True, scope="module")
def speedups(request: pytest.FixtureRequest) -> Iterator[None]:
    """The streams of this process, and of the daemons that it starts."""
    with pytest.MonkeyPatch.context() as patched:
        if getattr(request, "param", "native") == "python":
            patched.setattr(stream, "SPEEDUPS", False)
            patched.setenv("RPCSYS_SPEEDUPS", "0")
        yield


@pytest.fixture(autouse=True, scope="package")
def watched_labs() -> Iterator[None]:
    """Check labs as other daemons are checked."""
    with lab_checks.watched():
        yield


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves shared memory or state of daemons that outlive it; `Daemons.stop` checks the others."""
    running = invariant.running
    running.excused = False
    for pid in running.watched:
        running.idle(pid)
    shared, before = invariant.shared_memory(), {*running.left(running.watched)}
    yield
    if not running.excused:
        request.node.funcargs.clear()  # TVM's sessions end with the last reference to them
        known = shared | before

        def left() -> set[str]:
            return {*running.left(running.watched), *invariant.shared_memory()} - known

        assert not invariant.settled(left), "the test, or one beside it, has left something"


@pytest.fixture(scope="module")
def way() -> str:
    """How TVM's clients reach trackers (`tests.live.ways`); a parameter of tests that go several ways."""
    return DEFAULT


@pytest.fixture
def daemons(tmp_path: Path, way: str) -> Iterator[Daemons]:
    """Starts daemons for one test; they are stopped after it."""
    started = Daemons(tmp_path, way)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def module_daemons(tmp_path_factory: pytest.TempPathFactory, way: str) -> Iterator[Callable[..., Daemons]]:
    """Makes sets of daemons that run until the last test of the module has ended."""
    made: list[Daemons] = []

    def make(way: str = way) -> Daemons:
        made.append(Daemons(tmp_path_factory.mktemp("daemons"), way))
        return made[-1]

    yield make
    for daemons in made:
        daemons.stop()


@pytest.fixture(scope="module")
def server(module_daemons: Callable[..., Daemons]) -> Daemon:
    """A server whose sessions may run programs. Modules that need another one have their own."""
    return board_commands.board(module_daemons(), "--slots", "4")


@pytest.fixture
def session(server: Daemon) -> Iterator[rpcsys.client.Session]:
    """A session there, without a tracker."""
    with rpcsys.connect(*server.address, key="k") as session:
        yield session


@pytest.fixture
def fault_lab(daemons: Daemons, artefacts: Artefacts, kind: str) -> Iterator[FaultLab]:
    """A tracker, a server and clients of the session ``kind``; not started yet."""
    lab = FaultLab(daemons, artefacts, kind)
    yield lab
    lab.stop()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of session."""
    return request.param


@pytest.fixture(scope="session")
def artefacts(shared: Path) -> Artefacts:
    """Compiled libraries, shared by the processes of a parallel run."""
    return compiled(shared)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every test of this folder is live."""
    item.add_marker("live")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests of open labs where trackers serve closed ones."""
    marker = item.get_closest_marker("open_lab")
    if SECURE and marker is not None:
        pytest.skip(f"of an open lab: {marker.args[0]}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first, so that the others run beside them and none of them is the last."""
    items.sort(key=lambda item: next((n for n, name in enumerate(LONG) if name in item.nodeid), len(LONG)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Add the daemons' standard error to the report of a failed test."""
    report = yield
    if report.failed:
        invariant.running.excused = True
        values = getattr(item, "funcargs", {}).values()
        daemons = {daemon.pid: daemon for value in values for daemon in getattr(value, "started", ())}
        for pid, daemon in daemons.items():
            text = daemon.stderr()[-SHOWN_BYTES:]
            report.sections.append((f"standard error of {daemon.name} ({pid})", text))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the figures that tests recorded with `record_property`; the tests' own bounds are loose."""
    figures = [
        f"{report.nodeid.rpartition('::')[2]}: {name} {value}"
        for report in terminalreporter.stats.get("passed", ())
        for name, value in report.user_properties
    ]
    if figures:
        terminalreporter.section("figures")
        terminalreporter.write_line("\n".join(figures))


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for a Unix socket in it. A killed command leaves its socket there."""
    with tempfile.TemporaryDirectory(prefix="cli-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def cli(tmp_path: Path, daemons: Daemons, current_archive: Path, short_folder: Path) -> Iterator[BoardCli]:
    """``rpcsys board`` with a tracker; its boards are stopped after the test."""
    made = BoardCli(tmp_path, daemons.tracker(), current_archive, short_folder, [])
    yield made
    for board in made.made:
        board.stop()


@pytest.fixture(scope="session")
def current_archive(shared: Path) -> Path:
    """An archive of this version, for this machine."""
    return once(shared / "current.tar.gz", pack_here)


@pytest.fixture(scope="session")
def newer_archive(shared: Path) -> Path:
    """An archive of a later version."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rpcsys, "__version__", "9.9.9")
        return once(shared / "newer.tar.xz", pack_here)


def pack_here(path: Path) -> None:
    """Pack the device runtime for this machine."""
    build.pack("x86_64-linux-gnu", path)


@pytest.fixture
def site(tmp_path: Path, daemons: Daemons) -> LabSite:
    """A closed lab whose tracker runs, and its people."""
    made = LabSite(tmp_path, daemons)
    made.init()
    made.start()
    return made
