"""The bound of bodies under way."""

from __future__ import annotations

from rpcsys.gateway.memory import BodyMemory, quarter_of_the_machine
from rpcsys.wire.memory import LARGE


def test_what_has_no_room_waits_in_turn() -> None:
    memory = BodyMemory(100)
    assert memory.take(60)
    assert not memory.take(50)
    order: list[str] = []
    memory.wait(50, lambda: bool(order.append("first")) or True)
    memory.wait(10, lambda: bool(order.append("second")) or True)
    assert not memory.take(1)  # nobody overtakes those that wait
    memory.give_back(60)
    assert (order, memory.taken) == (["first", "second"], 60)


def test_who_has_gone_takes_nothing() -> None:
    memory = BodyMemory(100)
    memory.add(200)  # what is there already is counted all the same
    memory.wait(50, lambda: False)
    memory.wait(100, lambda: True)
    memory.give_back(150)
    assert memory.taken == 50
    memory.give_back(50)
    assert memory.taken == 100


def test_memory_is_idle_once_no_large_body_has_come_or_gone() -> None:
    memory = BodyMemory(10 * LARGE)
    assert not memory.is_idle()
    assert memory.take(LARGE - 1)
    assert not memory.is_idle()  # none is kept
    assert not memory.is_idle()
    assert memory.take(LARGE)
    assert [memory.is_idle(), memory.is_idle(), memory.is_idle()] == [False, True, False]
    memory.give_back(LARGE)  # its reader had stopped: it is kept from now on
    assert [memory.is_idle(), memory.is_idle(), memory.is_idle()] == [False, True, False]


def test_one_body_alone_may_be_larger() -> None:
    memory = BodyMemory(100)
    assert memory.take(500)
    assert not memory.take(1)
    assert quarter_of_the_machine() > 1 << 20
