"""Each daemon is killed 100 times under load: nothing is left, and no slot has two leases at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rpcsys
from tests.live.abandoning_client import STEPS
from tests.live.daemons import Daemons
from tests.live.intervals import Held, too_many
from tests.live.load import Load, TvmLoad
from tests.live.restarting_lab import BOARDS, KEY, SLOTS, TVM_KEY, FaultThreads, Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SEED = 5
TIMES = 100
PAUSE_S = (0.1, 1.0)
#: The least calls and leases between two kills of the tracker, and the limit in seconds for them: a load must run.
BETWEEN, BETWEEN_S = 10, 4.0
SERVERS = tuple(BOARDS)


@pytest.fixture
def lab(daemons: Daemons, tmp_path: Path) -> Lab:
    return Lab(daemons, random.Random(), tmp_path / "state")


@pytest.fixture
def load(lab: Lab) -> Iterator[Load]:
    load = Load()
    load.ours(lab.tracker.where, KEY, 3)
    load.raw(lab.tracker.address, KEY, 4)
    yield load
    load.stop()


@pytest.fixture
def tvm_load(lab: Lab) -> Iterator[TvmLoad]:
    pytest.importorskip("tvm.rpc")
    load = TvmLoad(lab.tracker.address, TVM_KEY, 2)
    yield load
    load.stop()


def in_history(lab: Lab) -> list[Held]:
    """The leases in the history, without those of servers that were gone: their end is not known."""
    with rpcsys.connect_tracker(lab.tracker.where) as client:
        rows = client.history(limit=None)
    return [
        Held(row["server"].partition(":")[0], row["since"], row["ended"], row["lease"])
        for row in rows
        if "gone" not in row["reason"]
    ]


def slots_of_folders(lab: Lab, held: list[Held]) -> dict[str, int]:
    """Folder of sessions -> number of slots, for each server that has run."""
    of_pid = {daemon.pid: SLOTS[daemon.name] for daemon in lab.daemons.started if daemon.name in SLOTS}
    folders = {one.board for one in held}
    return {folder: of_pid[int(folder.split("-")[-2])] for folder in folders}


def test_every_daemon_is_killed_a_hundred_times(lab: Lab, load: Load, tvm_load: TvmLoad, record_property):
    print(f"seed {SEED}")
    began = time.monotonic()
    faults = FaultThreads(SEED)

    def kill_tracker(_: random.Random) -> None:
        worked, until = load.total(), time.monotonic() + BETWEEN_S
        while load.total() < worked + BETWEEN and time.monotonic() < until:
            time.sleep(0.05)
        lab.kill("tracker")

    faults.add(kill_tracker, TIMES, PAUSE_S)
    faults.add(lambda _: lab.kill("proxy"), TIMES, PAUSE_S)
    faults.add(lambda chance: lab.kill(chance.choice(SERVERS)), TIMES, PAUSE_S)
    for generation in (1, 2):
        faults.add(
            lambda chance, generation=generation: lab.kill_below(chance.choice(SERVERS), chance, generation),
            TIMES,
            PAUSE_S,
        )
    faults.join(900)
    tvms = tvm_load.stop()
    load.stop()
    lab.all_free()
    record_property("leases, errors", f"{dict(load.done)}, {len(tvms)} of TVM's; {dict(load.errors)}")
    record_property("took, s", round(time.monotonic() - began))
    assert tvms
    assert load.done["our calls"] > TIMES
    assert all(load.done[step] for step in STEPS), load.done
    held = [*load.held, *tvms]
    assert not too_many(held, slots_of_folders(lab, held))
    history = in_history(lab)
    assert len(history) > TIMES / 4  # a session that survives kills of the tracker is one lease
    assert not too_many(history, SLOTS)
    logs = [daemon.stderr() for daemon in lab.daemons.started]
    assert not [text[text.index("Traceback") :][:3000] for text in logs if "Traceback" in text]
