"""Events and actions survive JSON, and a log of them gives the same tracker everywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker import events
from tests.tracker import event_json
from tests.tracker.transcripts import Scene
from tests.wire.messages import TO_TRACKER

ROOT = Path(__file__).resolve().parents[2]
times = st.floats(0, 2e9)
conns = st.integers(1, 2**53)
texts = st.text(max_size=20)
RECORDS = st.builds(events.HistoryEntry, times, texts, st.dictionaries(texts, st.none() | times | texts))
EVENTS = st.one_of(
    st.builds(events.TrackerStarted, times, texts, st.none() | texts, st.dictionaries(texts, times)),
    st.builds(events.Restored, times, st.lists(RECORDS, max_size=3).map(tuple)),
    RECORDS,
    st.builds(events.ReplicasChanged, times, st.lists(texts, max_size=3).map(tuple)),
    st.builds(events.SitesChanged, times, texts),
    st.builds(events.Connected, times, conns, texts, texts),
    st.builds(events.Received, times, conns, TO_TRACKER),
    st.builds(events.Disconnected, times, conns),
    st.builds(events.TimePassed, times),
    st.builds(events.Send, conns, st.lists(st.integers() | texts)),
    st.builds(events.Close, conns, texts),
    st.builds(events.StopTracker),
)


@given(EVENTS)
def test_events_and_actions_survive_json(event):
    assert event_json.from_json(json.loads(json.dumps(event_json.to_json(event)))) == event


REPLAY = """
import json, sys
from tests.tracker import event_json
from rpcsys.tracker.state import TrackerState
log = [event_json.from_json(json.loads(line)) for line in sys.stdin]
state = TrackerState(log[0])
for event in log[1:]:
    for action in state.apply(event):
        print(json.dumps(event_json.to_json(action)))
"""


def test_a_log_gives_the_same_actions_with_any_hash_seed():
    scene = Scene()
    servers = [scene.server(f"key{number}", f"s{number}", number + 1) for number in range(8)]
    clients = [scene.client() for _ in range(8)]
    for client in clients:
        for number in range(8):
            scene.ask(client, "request", number, key=f"key{number}", priority=number % 3)
    scene.leave(clients[0])
    scene.wait(2)
    for number, server in enumerate(servers):
        scene.put(server, f"key{number}:1")
    scene.leave(clients[1])
    scene.ask(clients[2], "summary", 99)
    log = "\n".join(map(json.dumps, scene.log))
    replays = [
        subprocess.run(
            [sys.executable, "-c", REPLAY],
            input=log,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert replays[0] == replays[1]
    assert len(replays[0].splitlines()) > 100
