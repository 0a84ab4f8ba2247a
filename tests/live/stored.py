"""What a tracker has stored, and raw peers for it."""

import sqlite3

from tests.live.labs import peer


def file(state):
    """The tracker's database, opened read-only."""
    return sqlite3.connect(f"file:{state / 'tracker.sqlite'}?mode=ro", uri=True, timeout=30)


def rows(state, query):
    with file(state) as opened:
        return opened.execute(query).fetchall()


def present(state):
    return set(rows(state, "SELECT kind, about FROM present"))


def hello(tracker, user):
    return peer(tracker, user)


def register(tracker, name, key="rpi4", **fields):
    probe = peer(tracker, name, key)
    asked = {"op": "register", "id": 1, "key": key, "name": name, "port": 9090, **fields}
    assert probe.ask(asked)["ok"]
    return probe


def until(probe, found):
    """The first message for which ``found`` is true."""
    while not found(message := probe.receive()):
        pass
    return message
