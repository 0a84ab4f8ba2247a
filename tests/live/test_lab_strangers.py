"""A lab's server and tracker under strangers of every kind, beside a running session and a member who asks.

Their times are reported; the bounds here are loose.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

import rpcsys
from rpcsys.link import credential
from rpcsys.link.link import Link
from tests.live.daemons import ROOT, START_S, Daemon, Daemons, anonymous_mb, wait_free, wait_until
from tests.live.labs import LabOnDisk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
USUAL_S, SLOWEST_S = 2.0, 20.0  # of most and of the slowest, on a machine where other tests run
FLOODS = [("garbage", 1000), ("half-way", 1500), ("fuzzed", 100_000)]


class Repeated(threading.Thread):
    """Does something without pause; ``times``: how long each took, in seconds."""

    def __init__(self, action: Callable[[], object], pause_s: float) -> None:
        super().__init__()
        self.times: list[float] = []
        self._action, self._pause_s, self._over = action, pause_s, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(self._pause_s):
            before = time.monotonic()
            self._action()
            self.times.append(time.monotonic() - before)

    def end(self) -> list[float]:
        self._over.set()
        self.join()
        return self.times


def p99_ms(times: list[float]) -> float:
    return round(1000 * sorted(times)[int(0.99 * len(times))], 2)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    """The tracker and the server of a lab, whose keeper is this process."""
    folder = tmp_path_factory.mktemp("strangers")
    daemons, lab = Daemons(folder), LabOnDisk(folder)
    paths = [str(folder / f"{name}.json") for name in ("keeper", "board")]
    credential.write(paths[0], lab.keeper)
    credential.write(paths[1], lab.board("b1"))
    credential.use(paths[0])
    tracker = lab.tracker(daemons)
    more = ("--name", "b1", "--slots", "2", "--lab", paths[1], "--preload", "numpy")
    yield tracker, daemons.server("rpi4", *more, tracker=tracker, offers=2)
    daemons.stop()
    credential.use_no_more(paths[0])


@pytest.mark.parametrize(("kind", "count"), FLOODS, ids=[kind for kind, _ in FLOODS])
@pytest.mark.parametrize("where", ["server", "tracker"])
def test_those_who_are_known_notice_nothing(
    site: tuple[Daemon, Daemon], where: str, kind: str, count: int, record_property: Callable[[str, object], None]
) -> None:
    tracker, server = site
    flooded = server if where == "server" else tracker
    with rpcsys.connect_tracker(tracker.address) as desk, Link.open(tracker.address) as link:
        with desk.request("rpi4", wait_timeout=START_S) as session:
            echo = session.get_function("testing.echo")
            measured = {"call": lambda: echo(1), "question": lambda: link.ask("whoami", timeout=30)}
            measured["lease"] = lambda: desk.request("rpi4", wait_timeout=START_S).close()
            alone = {name: Repeated(action, 0.002) for name, action in measured.items()}
            time.sleep(3)
            quiet = {name: p99_ms(each.end()) for name, each in alone.items()}
            before_mb, before_fds = anonymous_mb([flooded.pid]), psutil.Process(flooded.pid).num_fds()
            command = [sys.executable, "-m", "tests.live.strangers", kind, str(count), *map(str, flooded.address)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as flood:
                beside = {name: Repeated(action, 0.002) for name, action in measured.items()}
                assert flood.stdout is not None
                began = time.monotonic()
                assert flood.stdout.readline() == "done\n"
                lasted = time.monotonic() - began
                time.sleep(2)
                flood.communicate("")
            for name, each in beside.items():
                times = each.end()
                record_property(f"{where} {kind} {name}", f"p99 {quiet[name]} ms alone, {p99_ms(times)} beside")
                assert len(times) > 10
                assert statistics.median(times) < USUAL_S, (name, times)
                assert max(times) < SLOWEST_S, (name, times)
            record_property(f"{where} {kind}", f"{count / lasted:.0f} a second")

    def back() -> bool:
        return psutil.Process(flooded.pid).num_fds() <= before_fds and anonymous_mb([flooded.pid]) - before_mb < 2

    wait_until(back, 60, "descriptors and memory are back")
    record_property(f"{where} {kind} memory", f"{anonymous_mb([flooded.pid]) - before_mb:+.1f} MB")
    assert "Traceback" not in flooded.stderr()
    wait_free(tracker, "rpi4", 2, START_S)
