"""`rpcsys.tvm.Runner`: candidates that fail cost themselves alone; boards and results are shared."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from pathlib import Path

import pytest

import rpcsys
from rpcsys.errors import WaitTimeout
from tests.live import tuned
from tests.live.daemons import START_S, Daemons, queue, wait_free, wait_until
from tests.live.tuned import BODIES, compiled, results, running, sleeping

pytest.importorskip("tvm")
KEY = "board"
SHORT_S = 2.0  # that a candidate may take which hangs


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A library for each kind of candidate."""
    folder = tmp_path_factory.mktemp("candidates")
    return {name: compiled(folder, name, body) for name, body in BODIES.items()}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("flavour", ["ours", pytest.param("bare", marks=pytest.mark.slow)])
def test_a_candidate_that_fails_costs_itself_alone(
    daemons: Daemons, libraries: dict[str, Path], flavour: str, tmp_path: Path
) -> None:
    tracker = daemons.tracker()
    daemons.server(KEY, "--session-memory", "300M", tracker=tracker, flavour=flavour)
    (tmp_path / "broken.so").write_bytes(b"no library")
    kinds = {
        "segfault": "SIGSEGV",
        "exit": "status 3",
        "allocate": "memory limit",
        "hang": "Timeout, killed after 2 seconds",
    }
    names = [name for kind in kinds for name in (kind, "well")]
    with running(tracker, KEY, timeout_s=SHORT_S) as runner:
        paths = [*(libraries[name] for name in names), tmp_path / "broken.so", tmp_path / "none.so", libraries["well"]]
        found = results(runner, paths)
        for name, result in zip(names, found, strict=False):
            if name == "well":
                assert result.error_msg is None
                assert len(result.run_secs) == 3
            else:
                assert result.run_secs is None
                assert result.error_msg.startswith("RPCRunner: An exception occurred\n")
                assert kinds[name] in result.error_msg
        assert "not an ELF shared library" in found[-3].error_msg
        assert "none.so cannot be read" in found[-2].error_msg
        assert found[-1].error_msg is None
    wait_free(tracker, KEY, 1, START_S)


@pytest.mark.timeout(60)
def test_what_an_earlier_candidate_did_is_not_a_later_ones_fault(daemons: Daemons, libraries: dict[str, Path]) -> None:
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    with running(tracker, KEY) as runner:
        found = results(runner, [libraries["leave_spoilt"], libraries["crash_if_spoilt"], libraries["well"]])
    assert [result.error_msg for result in found] == [None] * 3


@pytest.mark.timeout(120)
def test_the_tracker_is_killed_and_then_the_server(daemons: Daemons, tmp_path: Path) -> None:
    paths = [compiled(tmp_path, f"slow{number}", sleeping(30)) for number in range(12)]
    tracker = daemons.tracker()
    server = daemons.server(KEY, tracker=tracker)
    with running(tracker, KEY) as runner:
        futures = runner.run(tuned.inputs(paths))
        wait_until(futures[1].done, START_S, "two candidates are measured")
        tracker.kill()
        wait_until(futures[3].done, START_S, "the session goes on without the tracker")
        server.kill()
        again = daemons.tracker(port=tracker.address[1])
        daemons.server(KEY, tracker=again, offers=0)  # the runner waits for it, and has it at once
        assert [future.result().error_msg for future in futures] == [None] * len(paths)
    wait_free(again, KEY, 1, START_S)


@pytest.mark.timeout(60)
def test_two_boards_are_used_together_and_one_is_lost(daemons: Daemons, tmp_path: Path) -> None:
    paths = [compiled(tmp_path, f"slow{number}", sleeping(20)) for number in range(24)]
    tracker = daemons.tracker()
    servers = [daemons.server(KEY, "--name", f"b{number}", tracker=tracker, offers=number + 1) for number in range(2)]
    with running(tracker, KEY) as runner:
        futures = runner.run(tuned.inputs(paths))
        wait_until(lambda: queue(tracker, KEY)["free"] == 0, START_S, "both boards are in use", 0.005)
        assert runner.boards == 2
        servers[0].kill()
        assert [future.result().error_msg for future in futures] == [None] * len(paths)


@pytest.mark.timeout(60)
def test_one_board_is_used_if_told_so(daemons: Daemons, tmp_path: Path) -> None:
    paths = [compiled(tmp_path, f"slow{number}", sleeping(20)) for number in range(8)]
    tracker = daemons.tracker()
    daemons.server(KEY, "--slots", "2", tracker=tracker, offers=2)
    with running(tracker, KEY, boards=1) as runner:
        futures = runner.run(tuned.inputs(paths))
        free = set()
        while not futures[-1].done():
            free.add(queue(tracker, KEY)["free"])
            time.sleep(0.01)
    assert 0 not in free


@pytest.mark.timeout(60)
def test_boards_are_given_between_rounds_to_who_waits_with_a_priority_that_is_not_lower(
    daemons: Daemons, libraries: dict[str, Path]
) -> None:
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    with running(tracker, KEY, priority=5) as runner, rpcsys.connect_tracker(tracker.address) as client:
        results(runner, [libraries["well"]])
        assert runner.boards == 1  # the session stays open
        with pytest.raises(WaitTimeout):
            client.request(KEY, priority=4, wait_timeout=3.0)
        for priority in (5, 6):
            with client.request(KEY, priority=priority, wait_timeout=START_S) as session:
                session.ping()
                assert runner.boards == 0
                futures = runner.run(tuned.inputs([libraries["well"]]))
                assert not futures[0].done()
            assert futures[0].result().error_msg is None


@pytest.mark.timeout(60)
def test_a_round_that_follows_at_once_waits_behind_others(daemons: Daemons, libraries: dict[str, Path]) -> None:
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    got: list[bool] = []

    def other() -> None:
        with rpcsys.connect_tracker(tracker.address) as client, client.request(KEY, priority=9):
            got.append(True)

    with running(tracker, KEY) as runner:
        results(runner, [libraries["well"]])
        waiting = threading.Thread(target=other)
        waiting.start()
        wait_until(lambda: queue(tracker, KEY)["pending"] or got, START_S, "another one waits", 0.001)
        assert results(runner, [libraries["well"]])[0].error_msg is None
        assert got
        waiting.join()


@pytest.mark.timeout(60)
def test_a_run_that_is_repeated_measures_nothing(daemons: Daemons, tmp_path: Path) -> None:
    paths = [compiled(tmp_path, f"well{number}", "") for number in range(4)]
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    store = tmp_path / "results.sqlite"
    with running(tracker, KEY, store=store) as runner:
        first = [list(map(float, result.run_secs)) for result in results(runner, paths)]
        assert runner.counts == {"measured": 4, "known": 0}
    copies = [shutil.copy(path, path.with_name(f"copy-{path.name}")) for path in paths]
    with running(tracker, KEY, store=store) as runner:
        assert [list(map(float, result.run_secs)) for result in results(runner, copies)] == first
        assert runner.counts == {"measured": 0, "known": 4}
    for other in ({"evaluator_config": tuned.config(number=2)}, {"alloc_repeat": 2}, {"measure_again": True}):
        with running(tracker, KEY, store=store, **other) as runner:
            results(runner, paths[:1])
            assert runner.counts == {"measured": 1, "known": 0}


@pytest.mark.timeout(120)
def test_results_at_the_tracker_are_known_to_all_also_after_it_was_killed(
    daemons: Daemons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [compiled(tmp_path, f"well{number}", "") for number in range(4)]
    tracker = daemons.tracker("--state-dir", str(tmp_path / "state"))
    server = daemons.server(KEY, tracker=tracker)
    found = []
    for number, known in enumerate((0, 4, 4)):
        monkeypatch.setenv("HOME", str(tmp_path / f"home{number}"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"home{number}"))
        with running(tracker, KEY, store="tracker") as runner:
            found.append([list(map(float, result.run_secs)) for result in results(runner, paths)])
            assert runner.counts == {"measured": 4 - known, "known": known}
        if number == 1:
            tracker.kill()
            server.kill()
            tracker = daemons.tracker("--state-dir", str(tmp_path / "state"), port=tracker.address[1])
            server = daemons.server(KEY, tracker=tracker)
    assert found[1:] == [found[0]] * 2
    assert not list(tmp_path.glob("home*"))  # nothing is kept at the users'


@pytest.mark.timeout(60)
def test_results_are_measured_where_the_trackers_file_is_broken(daemons: Daemons, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "results.sqlite").write_text("no database" * 100)
    tracker = daemons.tracker("--state-dir", str(state))
    daemons.server(KEY, tracker=tracker)
    with running(tracker, KEY, store="tracker") as runner:
        assert results(runner, [compiled(tmp_path, "well", "")])[0].error_msg is None
        assert runner.counts == {"measured": 1, "known": 0}
    wait_until(lambda: "results.sqlite cannot be used" in tracker.stderr(), START_S, "the tracker says why")
    assert tracker.stderr().count("cannot be used") == 1


@pytest.mark.timeout(60)
def test_a_runner_that_is_dropped_gives_its_boards_back(daemons: Daemons, libraries: dict[str, Path]) -> None:
    import rpcsys.tvm

    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    runner = rpcsys.tvm.Runner(KEY, tracker.address, evaluator_config=tuned.config(), store=None)
    results(runner, [libraries["well"]])
    assert queue(tracker, KEY)["free"] == 0
    del runner
    gc.collect()
    wait_free(tracker, KEY, 1, START_S)


@pytest.mark.timeout(60)
def test_a_runner_that_is_closed_leaves_the_queue(daemons: Daemons, libraries: dict[str, Path]) -> None:
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    with rpcsys.connect_tracker(tracker.address) as client, client.request(KEY):
        with running(tracker, KEY) as runner:
            futures = runner.run(tuned.inputs([libraries["well"]] * 2))
            wait_until(lambda: queue(tracker, KEY)["pending"] == 1, START_S, "the runner waits")
        wait_until(lambda: queue(tracker, KEY)["pending"] == 0, START_S, "its request is gone")
        assert all("the runner is closed" in future.result().error_msg for future in futures)
        assert "the runner is closed" in results(runner, [libraries["well"]])[0].error_msg


@pytest.mark.timeout(60)
def test_a_key_that_no_board_has_is_told_at_once(daemons: Daemons, libraries: dict[str, Path]) -> None:
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    with running(tracker, "nobody") as runner:
        [result] = results(runner, [libraries["well"]])
        assert "no server offers" in result.error_msg or "nobody" in result.error_msg


@pytest.mark.timeout(60)
def test_waiting_for_a_board_has_an_end(daemons: Daemons, libraries: dict[str, Path]) -> None:
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    with rpcsys.connect_tracker(tracker.address) as client, client.request(KEY):
        with running(tracker, KEY, wait_timeout_s=1.0) as runner:
            [result] = results(runner, [libraries["well"]])
    assert result.run_secs is None
    assert "became free" in result.error_msg
