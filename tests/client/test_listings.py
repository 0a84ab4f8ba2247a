"""A tracker's long answers: joined pages, their limits, and the summary as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.client import listings
from rpcsys.errors import Forbidden, ProtocolError, TrackerError, TrackerLost

PAST = {
    **dict.fromkeys(("lease", "key", "server", "user", "address", "outcome", "reason"), "x"),
    "ended": 1.7e9,
    "held_s": 3.5,
    "waited_s": 0,
}
SUMMARY = {
    "queue_info": {"rpi4": {"free": 1, "pending": 2}, "idle": {"free": 0, "pending": 0}},
    "server_info": [
        {"key": "server:rpi4", "addr": ["10.0.0.7", 9090]},
        {"key": "server:proxy[rpi4,a:b]", "addr": ["10.0.0.8", 9091]},
    ],
}


class Pages:
    """A link to a tracker of ours that answers with one page after another."""

    ours = True
    received = 0

    def __init__(self, *pages):
        self.pages = list(pages)
        self.asked = []

    def ask(self, op, **fields):
        self.asked.append({name: value for name, value in fields.items() if name != "timeout"})
        return {"ok": True, **self.pages.pop(0)}


def page(number, following):
    empty = {"queue_info": {}, "server_info": [], "servers": [], "leases": []}
    queues = {f"k{number}": {"free": number, "pending": 0}}
    return {"summary": {**empty, "queue_info": queues}, "next": following}


def test_a_summary_of_several_pages_is_one():
    link = Pages(page(1, [0, 5]), page(2, None))
    assert list(listings.whole_summary(link)["queue_info"]) == ["k1", "k2"]
    assert link.asked == [{"after": None}, {"after": [0, 5]}]


def test_a_summary_that_repeats_pages_is_refused():
    with pytest.raises(ProtocolError, match="pages repeat themselves"):
        listings.whole_summary(Pages(page(1, [0, 5]), page(2, [0, 5])))


def test_as_many_ended_leases_as_the_limit():
    link = Pages({"leases": [PAST] * 3, "before": 7}, {"leases": [PAST] * 2, "before": 5})
    assert len(list(listings.leases(link, limit=5, page=3, key=None))) == 5
    assert [(asked["limit"], asked["before"]) for asked in link.asked] == [(3, None), (2, 7)]


def test_a_page_longer_than_requested_is_refused():
    with pytest.raises(ProtocolError, match="does not go on"):
        list(listings.leases(Pages({"leases": [PAST] * 3, "before": None}), limit=2, page=2))


def test_an_answer_above_the_limits_is_refused(monkeypatch):
    monkeypatch.setattr(listings, "MAX_BYTES", -1)
    with pytest.raises(ProtocolError, match="ask for less"):
        listings.whole_summary(Pages(page(1, None)))


def test_tvms_tracker_keeps_no_history():
    link = Pages()
    link.ours = False
    for ask in (lambda: next(listings.leases(link)), lambda: listings.usage(link)):
        with pytest.raises(TrackerError, match="keeps no history"):
            ask()


def test_a_summary_as_text():
    text = listings.text_summary(SUMMARY)
    assert "10.0.0.7:9090            server:rpi4" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["rpi4", "2", "1", "2"] in rows
    assert not any(row[:1] == ["idle"] for row in rows)


@given(
    st.dictionaries(st.sampled_from(["queue_info", "server_info"]), st.none() | st.integers() | st.lists(st.integers()))
)
def test_an_invalid_summary_is_refused(summary):
    try:
        said = listings.text_summary(summary)
    except ProtocolError as error:
        said = str(error)
    assert said.startswith("Server List") or "not of the form" in said


class Refuses(Pages):
    """A link to a tracker that answers with an error."""

    def ask(self, op, **fields):
        raise self.pages[0]


def test_a_tracker_that_knows_no_such_page_has_no_replicas():
    """One alone, one from before, and TVM's."""
    tvms = Pages()
    tvms.ours = False
    for link in (Refuses(TrackerError("UnknownPage: there are: /api/lab")), tvms):
        assert listings.replicas(link)["replicas"] == []


@pytest.mark.parametrize("error", [Forbidden("ann may not see"), TrackerLost("no answer")])
def test_who_may_not_ask_for_replicas_is_told_so(error):
    with pytest.raises(type(error)):
        listings.replicas(Refuses(error))
