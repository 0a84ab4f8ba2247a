"""What the state knows of a lab."""

from rpcsys.tracker.access import Access
from rpcsys.tracker.lab_view import LabView


def test_a_view_changes_with_what_it_shows():
    view = LabView(Access("basement"), "lab-host:9190", ("sha256:1", "sha256:2"))
    assert view.name == "basement"
    assert view == LabView(Access("basement"), "lab-host:9190", ("sha256:1", "sha256:2"))
    assert view != LabView(Access("basement"), "lab-host:9190", ("sha256:2", "sha256:3"))
