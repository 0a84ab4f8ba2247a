"""What trackers of several sites say to each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.wire import tracker
from rpcsys.wire.checks import MAX_TEXT
from rpcsys.wire.control import Request
from rpcsys.wire.sites import (
    OF_GUESTS,
    TO_TRACKER,
    AskForGuest,
    GuestLeft,
    Introduce,
    join_tickets,
    site_of,
    split_ticket,
)
from tests.scripted_peers import mutated

ASK = AskForGuest(7, 3, "ann", "10.0.0.5", Request(7, "rpi4").to_json())
NAMES = st.from_regex(r"\A[A-Za-z0-9_-]{1,32}\Z")


@pytest.mark.parametrize("message", [Introduce(0, "berlin"), ASK, GuestLeft(8, 3)])
def test_messages_are_written_and_read_alike(message):
    assert tracker.parse_to_tracker(message.to_json(), TO_TRACKER) == message


@given(mutated(ASK.to_json()))
def test_a_false_question_for_a_guest_is_refused_or_true(question):
    try:
        found = AskForGuest.from_json(question)
        tracker.parse_to_tracker(found.ask, OF_GUESTS)
    except ProtocolError:
        return
    assert len(found.user) <= MAX_TEXT
    assert found.guest > 0


@given(st.dictionaries(NAMES, st.integers(0, 2**48), max_size=4))
def test_tickets_of_several_sites_are_one(arrivals):
    tickets = {site: f"{arrival}@{site}.1a2b3c4d" for site, arrival in arrivals.items()}
    assert split_ticket(join_tickets([*tickets.values()])) == tickets


def test_what_does_not_fit_one_ticket_is_left_out():
    tickets = [f"{number}@{'s' * 30}{number}.1a2b3c4d" for number in range(9)]
    joined = join_tickets(tickets)
    assert len(joined) <= MAX_TEXT
    assert [*split_ticket(joined).values()] == tickets[: joined.count("+") + 1]
    assert split_ticket(None) == {}


def test_the_name_of_a_lease_says_its_site():
    assert site_of("paris.1a2b3c4d-17000") == site_of("17000@paris.1a2b3c4d") == "paris"
    assert site_of("1a2b3c4d-17000") == site_of("17000@1a2b3c4d") == ""
