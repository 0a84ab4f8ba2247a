"""Every event has a handler."""

from __future__ import annotations

from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.records import Policy
from rpcsys.server.supervisor.state import DeviceServerState


def below(kind: type) -> set[type]:
    """The classes derived from ``kind`` that have no subclass."""
    return set().union(*({one, *below(one)} for one in kind.__subclasses__()))


def test_every_event_is_handled():
    handled = DeviceServerState(Policy("k", deploy=True, pinned=True, in_lab=True, canary=True))._on_event.keys()
    assert handled == below(ev.Event) - {ev.ChildReport, ev.LeaseReport}


def test_events_of_deployments_have_no_handler_without_deploy():
    handled = DeviceServerState(Policy("k"))._on_event.keys()
    assert ev.Catalogue not in handled
    assert ev.Opened in handled
