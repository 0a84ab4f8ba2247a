"""What the history has for a page."""

from rpcsys.tracker.views.past import Past


def test_a_problem_is_no_past() -> None:
    assert not Past(problem="this tracker keeps no history")
    assert Past(usage=[{"user": "ann"}])
