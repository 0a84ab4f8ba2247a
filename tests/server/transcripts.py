"""Drives a server's state as a transcript: events go in, actions come out, and a log of both can be replayed."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum

from rpcsys.server.models.store import Version
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.records import Policy
from rpcsys.server.supervisor.state import DeviceServerState

QUIET = (do.Log,)
#: A pinned match key: its pin, secret, private key, public name and text.
PIN, SECRET, SEED = "1f" * 32, "5c" * 16, "2e" * 32
NAME = f"k:t1-{PIN}"
WHOLE = f"{NAME}-{SECRET}"


class Transcript:
    """A `DeviceServerState` with a clock and, by default, no spare children.

    ``post`` gives it an event of a class and returns the actions, except log lines.
    """

    def __init__(self, **policy):
        self.policy = Policy(**{"key": "k", "spares": 0, "quiet_s": 0.0, **policy})
        self.state = DeviceServerState(self.policy)
        self.now = 100.0
        self.log = []
        self.out = list(self.state.start())

    def post(self, kind, *args, after=0.0, **fields):
        self.now += after
        event = kind(self.now, *args, **fields)
        actions = self.state.handle(event)
        self.log.append((event, actions))
        self.out += actions
        return [action for action in actions if not isinstance(action, QUIET)]

    def tick(self, after):
        """Let ``after`` seconds pass, with a Tick at every deadline, as the loop does; the actions."""
        end = self.now + after
        actions = []
        for _ in range(1000):
            due = self.state.deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            actions += self.post(ev.Tick)
        else:
            raise AssertionError("the deadline does not move: the loop would spin")
        self.now = end
        return actions

    def logged(self):
        return [action.text for _, actions in self.log for action in actions if isinstance(action, do.Log)]

    # Shorthands

    def boot(self):
        """Start the zygote and a ready child for every slot; the actions of these."""
        spawned = self.post(ev.ZygoteUp)
        assert spawned == [do.Spawn(number + 1) for number in range(self.policy.slots)]
        return [action for child in spawned for action in self.post(ev.ChildReady, child.child)]

    def register(self, ours=True):
        """Register with a tracker and make the offers; their match keys ``k:1`` and so on."""
        assert isinstance(self.post(ev.LinkUp, ours)[0], do.RegisterServer)
        offers = self.post(ev.Registered)
        return self.offers(offers)

    def offers(self, actions):
        keys = []
        for action in actions:
            if isinstance(action, do.Offer):
                self._keys = getattr(self, "_keys", 0) + 1
                keys.append(f"k:{self._keys}")
                self.post(ev.KeyMade, keys[-1])
        return keys

    def greet(self, conn, key="k", session="rpcsys/1", **fields):
        self.post(ev.Accepted, conn, f"peer{conn}")
        return self.post(ev.Opened, conn, f"peer{conn}", "client", key, session, **fields)

    def child_dies(self, child, status=0, cleaned=()):
        """Have a child die and its session's directory removed; the actions."""
        actions = self.post(ev.ChildDead, child, status, cleaned)
        for action in actions:
            if isinstance(action, do.Finish):
                actions += self.post(ev.Removed, action.session)
        return actions

    def replay(self):
        """Give all logged events, through JSON, to a new state: it must decide the same."""
        again = DeviceServerState(self.policy)
        again.start()
        for event, actions in self.log:
            copy = copied(event)
            assert copy == event
            assert [copied(action) for action in actions] == actions
            assert again.handle(copy) == actions
        assert snapshot(again) == snapshot(self.state)


def pinned_server():
    """A server in a lab, with one slot, that has offered `WHOLE`."""
    script = Transcript(tracked=True, pinned=True)
    script.boot()
    assert script.post(ev.LinkUp, True) == [do.RegisterServer()]
    assert script.post(ev.Registered) == [do.Offer()]
    script.post(ev.KeyMade, WHOLE, SEED)
    return script


FRONT = f"k:t1-{'3d' * 32}"
SECRETS = ("4a" * 16, "4b" * 16)


def modules_server(**policy):
    """A server in a lab with deployed modules, registered, with no slot free."""
    script = Transcript(tracked=True, pinned=True, in_lab=True, deploy=True, front=FRONT, front_seed=SEED, **policy)
    script.boot()
    script.post(ev.LinkUp, True)
    script.post(ev.Registered)
    return script


def copied(item):
    """A copy of an event or an action, made through JSON."""
    plain = json.loads(json.dumps(dataclasses.asdict(item)))
    if "versions" in plain:
        plain["versions"] = [Version(*version) for version in plain["versions"]]
    if "version" in plain:
        plain["version"] = Version(*plain["version"])
    return type(item)(**{name: tuples(value) for name, value in plain.items()})


def tuples(value):
    if isinstance(value, Version):
        return value
    return tuple(tuples(item) for item in value) if isinstance(value, list) else value


def snapshot(thing):
    """The whole content of a state, as plain values."""
    if isinstance(thing, Enum) or callable(thing):
        return thing.value if isinstance(thing, Enum) else None
    if dataclasses.is_dataclass(thing):
        return {field.name: snapshot(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    if isinstance(thing, dict):
        return {key: snapshot(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [snapshot(item) for item in thing]
    return {key: snapshot(value) for key, value in vars(thing).items()} if hasattr(thing, "__dict__") else thing


def kinds(actions):
    return [type(action) for action in actions]


def only(actions, kind):
    return [action for action in actions if isinstance(action, kind)]


def taken(script, key="k:1", lease="L1", epoch=1, limit_s=None, **rights):
    return script.post(ev.KeyTaken, lease, epoch, key, "user", "10.0.0.1", limit_s, **rights)
