"""Leases for fixtures: taken when a test begins, given back when it ends, whichever way."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Tuple

import pytest

from rpcsys.errors import RpcsysError, UnknownKey, UsageError, one_line
from rpcsys.pytest_plugin.fixture_board import BOARDS, FixtureBoard, ended
from rpcsys.pytest_plugin.needs import ANY_BOARD, KEYS, BoardNeed, need_of

if TYPE_CHECKING:
    from rpcsys.client import Session, Tracker

#: Exit status of a run in which nothing failed, but tests had no board: EX_TEMPFAIL of sysexits.h.
NO_BOARD_STATUS = 75


class NoBoard(pytest.fail.Exception):  # type: ignore[misc, name-defined]
    """A test has no board: an error of the lab, and no failure of the test."""

    __module__ = "builtins"  # as pytest's own outcomes say: its name is short in the summary


@contextlib.contextmanager
def no_board() -> Iterator[None]:
    """Turn errors of the lab into `NoBoard`, and those of the test's author into a failed fixture; one line each."""
    try:
        yield
    except UsageError as error:
        pytest.fail(one_line(error), pytrace=False)
    except RpcsysError as error:
        raise NoBoard(one_line(error), pytrace=False) from None


def connect(config: pytest.Config) -> Tracker:
    """A connection to the tracker of the option, or of the environment. Raises what `connect_tracker` raises."""
    from rpcsys.client import connect_tracker

    return connect_tracker(config.getoption("rpcsys_tracker"))


@contextlib.contextmanager
def leased(
    request: pytest.FixtureRequest, tracker: Tracker, param: Optional[str], *, several: bool = False
) -> Iterator[Tuple[Session, ...]]:
    """The sessions that the fixture of ``request`` needs, closed at the end. ``param``: the key, if `--boards` has it.

    Raises `NoBoard`.
    """
    need = _need(request, param)
    if need.count > 1 and not several:
        pytest.fail(f"@pytest.mark.board(count={need.count}): the fixture for several is boards", pytrace=False)
    if need.count == 1 and need.labels == ANY_BOARD and in_hold(request.config):
        need = dataclasses.replace(need, labels={})  # any board is the held one
    with _asking(need, param):
        wait_s = request.config.getoption("rpcsys_wait")
        found: Any = tracker.request(wait_timeout=wait_s, **dataclasses.asdict(need))
    sessions: Tuple[Session, ...] = found if need.count > 1 else (found,)
    boards = [FixtureBoard({"key": one.info.get("key"), **one.lease}, one) for one in sessions]
    with contextlib.ExitStack() as stack:
        stack.callback(_note_ends, tracker, boards)
        for one in sessions:
            stack.callback(one.close)
        _note(request, boards)
        yield sessions


@contextlib.contextmanager
def leased_for_tvm(request: pytest.FixtureRequest, tracker: Tracker, param: Optional[str]) -> Iterator[Any]:
    """The same for TVM's client: its ``RPCSession``."""
    rpc = pytest.importorskip("tvm.rpc", reason="tvm_remote needs TVM; type: pip install apache-tvm")
    from rpcsys.client.leasing import unopened
    from rpcsys.client.waiting import Wanted

    need = _need(request, param)
    wanted = Wanted(**{**dataclasses.asdict(need), "count": 1})
    wait_s = request.config.getoption("rpcsys_wait")
    with _asking(need, param), unopened(tracker, wanted, wait_s) as lease:
        try:
            remote = rpc.connect(lease["host"], lease["port"], lease["matchkey"], need.session_timeout or 0)
        except RuntimeError as error:
            raise NoBoard(
                f"TVM's client has no session with {lease['host']}: {one_line(error)}", pytrace=False
            ) from None
    board = FixtureBoard(lease)
    with contextlib.ExitStack() as stack:
        stack.callback(_note_ends, tracker, [board])
        stack.callback(_close_remote, remote)
        _note(request, [board])
        yield remote


def _close_remote(remote: Any) -> None:
    """Close it whoever refers to it: the traceback of a failed test does, until the run ends."""
    with contextlib.suppress(RuntimeError):  # it is lost already
        remote.get_function("CloseRPCConnection")()


def _need(request: pytest.FixtureRequest, param: Optional[str]) -> BoardNeed:
    """What the test needs, with a key or labels. Skips it where `--boards` leaves out its key."""
    need, keys = need_of(request.node), request.config.stash[KEYS]
    if need.key is not None and keys is not None and need.key not in keys:
        pytest.skip(f"--boards leaves out {need.key}")
    key = need.key or param
    return dataclasses.replace(need, key=key, labels=need.labels or ({} if key else ANY_BOARD))


@contextlib.contextmanager
def _asking(need: BoardNeed, param: Optional[str]) -> Iterator[None]:
    """Errors of a request. Skips a test with labels that no board of the key has which `--boards` gives it."""
    with no_board():
        try:
            yield
        except UnknownKey as error:
            if param is not None and need.key == param and need.labels:
                pytest.skip(one_line(error))
            raise


def _note(request: pytest.FixtureRequest, boards: List[FixtureBoard]) -> None:
    """Remember the boards for the reports of tests."""
    request.node.stash.setdefault(BOARDS, {})[str(request.fixturename)] = boards


def in_hold(config: pytest.Config) -> bool:
    """Whether this run is in the shell of a hold, whose board its tests use."""
    return bool(os.environ.get("RPCSYS_LEASE")) and not config.getoption("rpcsys_lab")


def _note_ends(tracker: Tracker, boards: List[FixtureBoard]) -> None:
    """Ask how the leases have ended that a failed test had. That of a hold goes on."""
    from rpcsys.client import attaching

    for board in boards:
        if board.failed and not attaching.holds(board.lease):
            board.left = ended(tracker, board.lease)
