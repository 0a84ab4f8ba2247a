"""Boards as pytest's fixtures: leased when a test begins, given back when it ends.

pytest imports this module at its start, wherever rpcsys is installed: it imports neither the client nor numpy, and runs
on every Python of the device tier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Tuple

import pytest

from rpcsys.errors import RpcsysError, UsageError, one_line
from rpcsys.pytest_plugin import leasing, needs, reports
from rpcsys.pytest_plugin.leasing import NO_BOARD_STATUS, NoBoard

if TYPE_CHECKING:
    from rpcsys.client import Session, Tracker
    from rpcsys.lab import Lab

#: How long a test waits for a board, in seconds.
WAIT_S = 300.0
#: In the input of pytest-xdist's workers: the keys of ``--boards``.
_WORKER_KEYS = "rpcsys_boards"
_MARKER = (
    "board(key=None, *, labels={}, count=1, session_timeout=None, priority=1, wait_for_key=False): what the fixtures "
    "board, boards, module_board and tvm_remote lease; count is for boards"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and the setting of the local lab."""
    group = parser.getgroup("rpcsys", "boards of a lab (rpcsys)")
    add = group.addoption
    where = "the tracker that leases boards (default: RPCSYS_TRACKER, or 127.0.0.1:9190)"
    add("--rpcsys-tracker", metavar="HOST:PORT", help=where)
    add("--rpcsys-lab", action="store_true", help="lease from the fixture lab, a lab on this machine")
    wait = "how long a test waits for a board (default: %(default)g s)"
    add("--rpcsys-wait", type=float, default=WAIT_S, metavar="SECONDS", help=wait)
    runs = "run each test of a board once for each of these keys; all: for each key that the tracker has a server of"
    add("--boards", dest="rpcsys_boards", metavar="KEY,KEY", help=runs)
    parser.addini("rpcsys_lab", "servers of the fixture lab, as KEY=COUNT", type="args", default=["cpu=1"])


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and what decides the exit status."""
    config.addinivalue_line("markers", _MARKER)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_WithoutBoard(), "rpcsys-without-board")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Find the keys of ``--boards``: once, since all workers must collect the same tests."""
    config = session.config
    worker = getattr(config, "workerinput", None)
    config.stash[needs.KEYS] = worker[_WORKER_KEYS] if worker else _keys(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the keys to a worker of pytest-xdist."""
    node.workerinput[_WORKER_KEYS] = node.config.stash[needs.KEYS]


def _keys(config: pytest.Config) -> Optional[List[str]]:
    text = config.getoption("rpcsys_boards")
    if text is None:
        return None
    if text != "all":
        return needs.split_keys(text)
    if config.getoption("rpcsys_lab"):
        return sorted(needs.lab_keys(config.getini("rpcsys_lab")))
    try:
        with leasing.connect(config) as tracker:
            keys = sorted({row["key"].partition(":")[2] for row in tracker.summary()["server_info"]})
    except UsageError as error:
        raise pytest.UsageError(one_line(error)) from None
    except RpcsysError as error:
        pytest.exit(f"--boards all: {one_line(error)}", NO_BOARD_STATUS)
    if not keys:
        pytest.exit("--boards all: the tracker has no server", NO_BOARD_STATUS)
    return keys


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of boards once for each key of ``--boards``."""
    needs.parametrize(metafunc)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Mark a report of a test without a board, which is an error whatever the test expects; and add what is known."""
    outcome: Any = yield
    report = outcome.get_result()
    if call.excinfo is not None and isinstance(call.excinfo.value, NoBoard):
        report.no_board, report.outcome = True, "failed"
        vars(report).pop("wasxfail", None)
    reports.extend(item, report)


class _WithoutBoard:
    """Counts what failed, and sets the exit status of a run in which nothing failed but the lab."""

    def __init__(self) -> None:
        self.tests = 0
        self.failed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and getattr(report, "no_board", False):
            self.tests += 1
        elif report.failed:
            self.failed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed += report.failed

    def _alone(self, exitstatus: int) -> bool:
        return bool(self.tests) and not self.failed and exitstatus == pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._alone(exitstatus):
            session.exitstatus = NO_BOARD_STATUS

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        if self._alone(exitstatus):
            terminalreporter.write_line(
                f"{self.tests} had no board, and nothing else failed: exit status {NO_BOARD_STATUS}", yellow=True
            )


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab on this machine: a tracker, and the servers of the setting ``rpcsys_lab``. Needs Python 3.10."""
    from rpcsys.lab import Lab

    remembers = ["--state-dir", str(tmp_path_factory.mktemp("rpcsys-tracker"))]
    with Lab(needs.lab_keys(request.config.getini("rpcsys_lab")), tracker_args=remembers) as running:
        yield running


@pytest.fixture(scope="session")
def rpcsys_tracker(request: pytest.FixtureRequest) -> Iterator[Tracker]:
    """The tracker that leases the boards, a `rpcsys.client.Tracker`."""
    local = request.getfixturevalue("lab") if request.config.getoption("rpcsys_lab") else None
    with leasing.no_board():
        tracker = local.connect() if local else leasing.connect(request.config)
    with tracker:
        yield tracker


@pytest.fixture(scope="session")
def board_key(request: pytest.FixtureRequest) -> Optional[str]:
    """The key of ``--boards`` that the test runs for; None without the option, and where a marker names the key."""
    key: Optional[str] = getattr(request, "param", None)
    return key


def _board(request: pytest.FixtureRequest, rpcsys_tracker: Tracker, board_key: Optional[str]) -> Iterator[Session]:
    """A session with a leased board, a `rpcsys.client.Session`."""
    with leasing.leased(request, rpcsys_tracker, board_key) as (session,):
        yield session


board = pytest.fixture(_board, name="board")
module_board = pytest.fixture(_board, name="module_board", scope="module")
session_board = pytest.fixture(_board, name="session_board", scope="session")


@pytest.fixture
def boards(
    request: pytest.FixtureRequest, rpcsys_tracker: Tracker, board_key: Optional[str]
) -> Iterator[Tuple[Session, ...]]:
    """As many sessions as the marker's ``count`` says, leased together."""
    with leasing.leased(request, rpcsys_tracker, board_key, several=True) as sessions:
        yield sessions


@pytest.fixture
def tvm_remote(request: pytest.FixtureRequest, rpcsys_tracker: Tracker, board_key: Optional[str]) -> Iterator[Any]:
    """A session of TVM's client with a leased board, a ``tvm.rpc.RPCSession``."""
    with leasing.leased_for_tvm(request, rpcsys_tracker, board_key) as remote:
        yield remote
