"""A lab in simulated time: boards, users, sessions and failures of every kind, with the tracker's state alone.

The lab trusts no statement of the tracker about itself. It keeps accounts of its own: which match keys are good,
who holds which board, who waits for what, and how much device time every user has had, by another formula.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from math import log
from typing import Any

from rpcsys.tracker import events
from rpcsys.tracker.state import TrackerState
from rpcsys.wire import control, tracker

START = 1_700_000_000.0
HALF_LIFE_S = 3600.0
TOLERANCE_S = 30.0
"""The tracker counts a running lease as a second more than it ran, and this lab's users run up to 20 at a time."""


class User:
    """A user with our client or TVM's; device time is kept by decay and growth."""

    def __init__(self, name: str, conn: int, ours: bool, wants: dict[str, int] | None = None) -> None:
        self.name, self.conn, self.ours = name, conn, ours
        self.wants = wants or {}
        self.spent, self.running, self.at = 0.0, 0, START
        self.total: Counter[str] = Counter()

    def move(self, at: float, running: int) -> None:
        decayed = 2.0 ** ((self.at - at) / HALF_LIFE_S)
        self.spent = self.spent * decayed + self.running * (1 - decayed) * HALF_LIFE_S / log(2)
        self.at, self.running = at, self.running + running


class Board:
    def __init__(self, number: int, key: str, ours: bool) -> None:
        self.number, self.key, self.ours = number, key, ours
        self.conn = 0
        self.match_key = ""
        self.lease: Any = None
        self.session = 0
        """0 without a session: it ended, or died while its lease goes on."""


class Asked:
    def __init__(self, user: User, id: int, key: str, at: float, priority: int, count: int) -> None:
        self.user, self.id, self.key, self.at = user, id, key, at
        self.priority, self.count = priority, count
        self.since = at
        self.ticket: str | None = None

    def standing(self, at: float) -> float:
        return self.priority + min(3, int((at - self.since) // 600))


class Lab:
    """Make one, add users, then `run`."""

    def __init__(self, boards: int, keys: int, seed: int, hot: dict[str, int] | None = None) -> None:
        self.random = random.Random(seed)
        self.now = START
        self.log: list[events.Event] = [events.TrackerStarted(START, "run")]
        self.state = TrackerState(self.log[0])
        self.due: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self.count = 0
        self.conns = 0
        self.users: dict[int, User] = {}
        self.boards: dict[int, Board] = {}
        self.offers: dict[str, Board] = {}
        self.asked: dict[tuple[int, int], Asked] = {}
        self.waiting: dict[str, dict[tuple[int, int], Asked]] = {}
        self.tvm_asked: dict[tuple[int, str], list[Asked]] = {}
        self.tickets: list[tuple[Asked, str]] = []
        self.figures: Counter[str] = Counter()
        self.length_s = lambda key: self.random.expovariate(1 / 1800)
        names = [*(key for key, many in (hot or {}).items() for _ in range(many))]
        names += [f"key{number % keys}" for number in range(boards - len(names))]
        for number, key in enumerate(names):
            self.board_comes(Board(number, key, ours=number % 7 > 0))

    # The tracker.

    def tell(self, event: events.Event) -> None:
        self.log.append(event)
        for action in self.state.apply(event):
            if type(action) is events.Send:
                self.hear(action.conn, action.message)

    def say(self, conn: int, message: Any) -> None:
        self.tell(events.Received(self.now, conn, message))

    def connect(self, address: str) -> int:
        self.conns += 1
        self.tell(events.Connected(self.now, self.conns, address, "10.0.0.1"))
        return self.conns

    def number(self) -> int:
        self.count += 1
        return self.count

    def later(self, seconds: float, what: Any, *details: Any) -> None:
        heapq.heappush(self.due, (self.now + seconds, self.number(), what, details))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while True:
            tick = self.state.next_deadline
            at = min(self.due[0][0] if self.due else end, end if tick is None else tick, end)
            self.now = max(self.now, at)
            if self.now >= end:
                return
            if tick is not None and tick <= at:
                self.tell(events.TimePassed(self.now))
            else:
                _, _, what, details = heapq.heappop(self.due)
                what(*details)

    def finish(self) -> None:
        """No new requests come; all leases and requests end."""
        for user in self.users.values():
            user.wants = {}
        while self.due or self.state.next_deadline is not None:
            self.run(3600.0)
            if not self.asked and not any(board.lease for board in self.boards.values()):
                self.run(300.0)
                return

    # Boards.

    def board_comes(self, board: Board, running: tuple[control.Running, ...] = ()) -> None:
        board.conn = self.connect(f"10.1.{board.number // 250}.{board.number % 250}")
        self.boards[board.conn] = board
        if board.ours:
            name = f"board{board.number}"
            labels = {"rev": str(board.number % 3)}
            register = control.Register(self.number(), board.key, name, port=9090, labels=labels, running=running)
            self.say(board.conn, register)
        else:
            self.say(board.conn, tracker.UpdateInfo("server:" + board.key, None, 9090))
        if board.lease is None:
            self.offer(board)

    def offer(self, board: Board) -> None:
        board.match_key = f"{board.key}:{self.number()}"
        self.offers[board.match_key] = board
        self.say(board.conn, tracker.Put(board.key, 9090, board.match_key))

    def board_goes(self, board: Board, returns_s: float, session_lives: bool) -> None:
        """A board's link breaks, and perhaps its session."""
        if board.conn not in self.boards:
            return
        self.figures["boards lost"] += 1
        del self.boards[board.conn]
        self.offers.pop(board.match_key, None)
        lives = session_lives and board.ours and bool(board.session) and returns_s < 8
        self.tell(events.Disconnected(self.now, board.conn))
        if board.lease is not None and not board.ours:
            self.gives_back(board)
        elif board.lease is not None and not lives:
            board.session = 0
            self.later(min(10.0, returns_s + 10.0), self.lost, board, board.lease)
        self.later(returns_s, self.board_returns, board, lives)

    def lost(self, board: Board, lease: Any) -> None:
        """By now the tracker has ended the lease, unless the board came back with it."""
        if board.lease is lease:
            self.gives_back(board)
            if board.conn in self.boards:
                self.offer(board)

    def board_returns(self, board: Board, lives: bool) -> None:
        running: tuple[control.Running, ...] = ()
        if lives and board.lease is not None:
            lease = board.lease
            running = (control.Running(lease["lease"], lease["epoch"], self.now - lease["at"]),)
        self.board_comes(board, running)

    def gives_back(self, board: Board) -> None:
        lease, board.lease, board.session = board.lease, None, 0
        user = lease["user"]
        user.move(self.now, -1)
        user.total[board.key] += self.now - lease["at"]

    def session_ends(self, board: Board, session: int) -> None:
        if board.session != session or board.lease is None:
            return
        if board.conn not in self.boards:  # its link is down just now
            self.later(1.0, self.session_ends, board, session)
            return
        lease = board.lease
        if board.ours:
            outcome = self.random.choice(["closed", "closed", "closed", "lost", "timeout", "crashed"])
            self.gives_back(board)
            ended = control.LeaseEnded(self.number(), lease["lease"], lease["epoch"], outcome)
            self.say(board.conn, ended)
        else:
            self.gives_back(board)
        self.figures["sessions"] += 1
        self.offer(board)

    # Users.

    def user_comes(self, name: str, ours: bool, wants: dict[str, int] | None = None) -> User:
        """``wants``: by key, how many requests wait at all times."""
        user = User(name, 0, ours, wants)
        self.connects(user)
        return user

    def connects(self, user: User) -> None:
        user.conn = self.connect(user.name if not user.ours else "10.0.0.5")
        self.users[user.conn] = user
        if user.ours:
            self.say(user.conn, tracker.Ping(control.Hello("0", (), user.name)))
        for key, many in user.wants.items():
            for _ in range(many):
                self.request(user, key)

    def request(
        self,
        user: User,
        key: str,
        priority: int = 1,
        wait_timeout: float | None = None,
        count: int = 1,
        again: Asked | None = None,
        labels: dict[str, str] | None = None,
    ) -> Asked:
        asked = Asked(user, self.number(), key, self.now, priority, count)
        if again is not None:
            asked.since, asked.ticket = again.since, again.ticket
        self.figures["requests"] += again is None
        if not labels:
            self.waiting.setdefault(key, {})[user.conn, asked.id] = asked
        self.asked[user.conn, asked.id] = asked
        if user.ours:
            message = control.Request(
                asked.id, key, priority, None, wait_timeout, True, labels or {}, count, asked.ticket
            )
            self.say(user.conn, message)
        else:
            self.tvm_asked.setdefault((user.conn, key), []).append(asked)
            self.say(user.conn, tracker.TvmRequest(key, "", priority))
        return asked

    def user_goes(self, user: User, returns_s: float, with_tickets: bool) -> None:
        """A user's connection breaks. Sessions go on; waiting requests are sent again, with or without tickets."""
        if user.conn not in self.users:
            return
        self.figures["clients lost"] += 1
        del self.users[user.conn]
        waited = [asked for (conn, _), asked in self.asked.items() if conn == user.conn]
        for asked in waited:
            self.forget(asked)
        for key in {asked.key for asked in waited}:
            self.tvm_asked.pop((user.conn, key), None)
        self.tell(events.Disconnected(self.now, user.conn))
        self.later(returns_s, self.user_returns, user, waited if with_tickets else [])

    def user_returns(self, user: User, waited: list[Asked]) -> None:
        wants, user.wants = user.wants, {}
        self.connects(user)
        for asked in waited:
            if asked.ticket is not None:
                self.figures["tickets used"] += 1
                self.request(user, asked.key, asked.priority, count=asked.count, again=asked)
        user.wants = wants
        self.keep_wanting(user)

    def keep_wanting(self, user: User) -> None:
        for key, many in user.wants.items():
            have = sum(conn == user.conn for conn, _ in self.waiting.get(key, ()))
            for _ in range(many - have):
                self.request(user, key)

    def cancel_all(self) -> None:
        """Cancel all requests of our clients."""
        for asked in [asked for asked in self.asked.values() if asked.user.ours]:
            if (asked.user.conn, asked.id) in self.asked:
                self.say(asked.user.conn, control.Cancel(self.number(), asked.id))

    def forget(self, asked: Asked) -> None:
        del self.asked[asked.user.conn, asked.id]
        self.waiting.get(asked.key, {}).pop((asked.user.conn, asked.id), None)

    # What is heard.

    def hear(self, conn: int, message: Any) -> None:
        if type(message) is list and message and type(message[0]) is int:
            match_key = message[1][2]
            mine = self.tvm_asked[conn, match_key.rpartition(":")[0]]
            asked = max(mine, key=lambda asked: asked.standing(self.now))  # of equals, the first
            mine.remove(asked)
            self.granted(asked, [{"matchkey": match_key}])
        elif type(message) is dict and "leases" in message:
            asked = self.asked[conn, message["id"]]
            assert len(message["leases"]) == asked.count, "all or none"
            self.granted(asked, message["leases"])
        elif type(message) is dict and message.get("event") == "queued":
            self.asked[conn, message["id"]].ticket = message["ticket"]
        elif type(message) is dict and message.get("ok") is False:
            asked = self.asked[conn, message["id"]]
            self.figures[message["error"]] += 1
            self.forget(asked)
        elif type(message) is dict and message.get("op") == "end":
            self.later(0.01, self.ends_unused, self.boards[conn], message["lease"])
        elif type(message) is dict and message.get("op") == "taken":
            board = self.boards[conn]
            board.lease = {"lease": message["lease"], "epoch": message["epoch"]}

    def granted(self, asked: Asked, leases: list[dict[str, Any]]) -> None:
        user = asked.user
        assert user.conn in self.users, "nobody who left is served"
        self.forget(asked)
        self.check_turn(asked)
        for lease in leases:
            board = self.offers.pop(lease["matchkey"], None)
            assert board is not None, "a match key that nobody offers was handed out"
            assert board.conn in self.boards, "a board that is gone was handed out"
            assert board.lease is None or "user" not in board.lease, "a board has two holders"
            board.lease = {**(board.lease or {}), "user": user, "at": self.now}
            user.move(self.now, 1)
            board.session = self.number()
            self.later(0.001, self.session_starts, board, board.session)
        self.figures["grants"] += 1
        if user.wants.get(asked.key, 0):
            self.later(0.0, self.keep_wanting, user)

    def session_starts(self, board: Board, session: int) -> None:
        if board.session != session or board.lease is None:
            return
        if board.ours and board.conn in self.boards:
            lease = board.lease
            self.say(board.conn, control.LeaseStarted(self.number(), lease["lease"], lease["epoch"], "x"))
        self.later(1.0 + self.length_s(board.key), self.session_ends, board, session)

    def ends_unused(self, board: Board, lease: str) -> None:
        if board.conn in self.boards and board.lease is not None and board.lease["lease"] == lease:
            epoch = board.lease["epoch"]
            self.gives_back(board)
            self.say(board.conn, control.LeaseEnded(self.number(), lease, epoch, "unused"))
            self.offer(board)

    def check_turn(self, asked: Asked) -> None:
        """No later request with no higher priority and more device time is served first."""
        waiting = self.waiting.get(asked.key, {})
        if asked.count > 1 or not waiting:
            return
        self.figures["turns checked"] += 1
        standing = asked.standing(self.now)
        asked.user.move(self.now, 0)
        for other in waiting.values():
            if other.since >= asked.since or other.count > 1 or other.standing(self.now) < standing:
                continue
            other.user.move(self.now, 0)
            assert other.user.spent >= asked.user.spent - TOLERANCE_S, (
                f"{other.user.name} ({other.user.spent:.0f} s) was passed over "
                f"by {asked.user.name} ({asked.user.spent:.0f} s)"
            )
