"""Deadlines keep their time, and nothing that is over."""

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker.deadlines import Deadlines


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 20), st.booleans()), max_size=200))
def test_deadlines_come_when_they_were_last_set(steps):
    deadlines, model = Deadlines(), {}
    for name, at, take in steps:
        if at is None:
            deadlines.drop((name,))
            model.pop((name,), None)
        elif take:
            taken = list(deadlines.take(at))
            assert set(taken) == {what for what, due in model.items() if due <= at}
            assert [model[what] for what in taken] == sorted(model[what] for what in taken)
            model = {what: due for what, due in model.items() if due > at}
        else:
            deadlines.set((name,), at)
            model[name,] = at
        assert deadlines.next == min(model.values(), default=None)
        assert len(deadlines._heap) <= 2 * len(model) + 64 + 1


def test_what_is_due_may_drop_move_and_set_what_is_due_after_it():
    deadlines = Deadlines()
    for at, name in enumerate(["first", "dropped", "moved", "set again", "last"]):
        deadlines.set((name,), at)
    taken = []
    for (name,) in deadlines.take(4):
        taken.append(name)
        if name == "first":
            deadlines.drop(("dropped",))
            deadlines.set(("moved",), 9)
            deadlines.set((name,), 4)  # for the next time
    assert taken == ["first", "set again", "last"]
    assert list(deadlines.take(9)) == [("first",), ("moved",)]
    assert deadlines.next is None
