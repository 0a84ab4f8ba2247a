"""The judge of replicas' histories: a good one passes, and each rule finds one that breaks it."""

from __future__ import annotations

import pytest

from tests.live.replica_history import (
    Asked,
    Event,
    Granted,
    Healed,
    History,
    Known,
    Left,
    Lost,
    Offered,
    Queued,
    Table,
    Taken,
    Troubled,
    Withdrawn,
)

ROWS = (("l1", 1), ("l2", 2))
GOOD: dict[str, Event] = {
    "offer": Offered(0.0, "board:1", "board1"),
    "ask": Asked(1.0, "a", "ours"),
    "grant": Granted(1.1, "a", "board:1", "l1", 1, 10),
    "taken": Taken(1.1, "board:1", "l1", 1, 10),
    "trouble": Troubled(2.0, "kill", False),
    "healed": Healed(3.0, 2.5),
    "second offer": Offered(3.1, "board:2"),
    "second ask": Asked(3.1, "b", "ours"),
    "queued": Queued(3.2, "b"),
    "third ask": Asked(3.3, "c", "ours"),
    "third queued": Queued(3.4, "c"),
    "second grant": Granted(4.9, "b", "board:2", "l2", 2, 20),
    "third offer": Offered(5.0, "board:3"),
    "third grant": Granted(5.1, "c", "board:3", "l3", 3, 20),
    "known": Known(6.0, 20, frozenset({"l1", "l2", "l3"})),
    "table": Table(9.0, "host1", ROWS, ("board1",)),
    "second table": Table(9.0, "host2", ROWS, ("board1",)),
}


def broken(**changed: Event | None) -> list[str]:
    """What the good history breaks with other events; None: without one."""
    named = {**GOOD, **{name.replace("_", " "): event for name, event in changed.items()}}
    return History([event for event in named.values() if event is not None]).broken()


def test_a_good_history_breaks_no_rule() -> None:
    assert broken() == []


PASSED: dict[str, Event | None] = {
    "second_grant": Granted(5.2, "b", "board:2", "l2", 3, 20),
    "third_grant": Granted(5.1, "c", "board:3", "l3", 2, 20),
}
BAD: list[tuple[int, dict[str, Event | None]]] = [
    (1, {"third_grant": Granted(5.1, "c", "board:2", "l3", 3, 20)}),
    (2, {"ask": None}),
    (2, {"left": Left(1.05, "a")}),
    (2, {"again": Granted(1.2, "a", "board:0", "l0"), "zeroth_offer": Offered(0.0, "board:0"), "known": None}),
    (3, {"offer": None}),
    (3, {"third_offer": Offered(5.2, "board:3")}),
    (3, {"withdrawn": Withdrawn(3.5, "board:2")}),
    (4, {"third_grant": Granted(5.1, "c", "board:3", "l3", 3, 10)}),
    (4, {"late": Taken(6.5, "board:0", "l0", 0, 10)}),
    (5, dict(PASSED)),
    (6, {"known": Known(6.0, 20, frozenset({"l1", "l3"}))}),
    (6, {"grant": Granted(1.1, "a", "board:1"), "known": Known(6.0, 20, frozenset({"l2", "l3"}))}),
    (6, {"second_table": Table(9.0, "host2", ROWS, ("board2",))}),
    (7, {"second_table": Table(9.0, "host2", ROWS[:1], ("board1",))}),
    (7, {"second_table": Table(9.0, "host2", (*ROWS, ROWS[0]), ("board1",))}),
    (8, {"healed": Healed(2.5, 2.0)}),
    (8, {"second_healed": Healed(6.0, 2.0), "second_trouble": Troubled(5.5, "stop", False)}),
    (8, {"tvms": Asked(1.0, "t", "tvm")}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "changed"), BAD)
def test_each_rule_finds_what_breaks_it(rule: int, changed: dict[str, Event | None]) -> None:
    found = broken(**changed)
    assert found
    assert {line.partition(":")[0] for line in found} == {f"rule {rule}"}


def test_who_was_away_may_be_passed() -> None:
    changed = {**PASSED, "lost": Lost(4.0, "b")}
    assert broken(**changed) == []
    changed["third_offer"] = Offered(4.0, "board:3")
    assert broken(**changed, back=Queued(4.5, "b")) == []
    assert len(broken(**changed, back=Queued(4.05, "b"))) == 1
    assert broken(**changed, back=Queued(4.05, "b"), taken_first=Taken(5.0, "board:3", "l3", 2, 20)) == []


def test_a_grant_that_was_late_was_decided_before() -> None:
    """It was decided when its device was offered, or later."""
    late: dict[str, Event] = {"trouble": Troubled(2.0, "lossy", True), "healed": Healed(4.0, 2.5)}
    assert broken(**PASSED, **late, third_offer=Offered(3.0, "board:3")) == []
    assert len(broken(**PASSED, **late, third_offer=Offered(4.0, "board:3"))) == 1


def test_messages_are_late_where_the_network_is_and_no_longer() -> None:
    changed: dict[str, Event] = {"trouble": Troubled(2.0, "cut", True), "withdrawn": Withdrawn(2.5, "board:2")}
    assert broken(**changed) == []
    changed["trouble"] = Troubled(2.8, "cut", True)
    assert len(broken(**changed)) == 1
