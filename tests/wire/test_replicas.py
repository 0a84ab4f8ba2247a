"""What is said of the replica that leads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.wire.checks import MAX_ID
from rpcsys.wire.replicas import Leads
from tests.scripted_peers import mutated

NEWS = {"op": "leader", "leader": ["lab-2", 9190], "term": 7, "here": False}


@given(
    st.none() | st.tuples(st.sampled_from(["lab-1", "::1"]), st.integers(1, 65535)),
    st.integers(0, MAX_ID),
    st.booleans(),
)
def test_news_are_written_and_read_alike(leader, term, here):
    news = Leads(term, leader, here)
    assert Leads.from_json(news.to_json()) == news


@given(mutated(NEWS))
def test_false_news_are_refused_or_true(news):
    try:
        found = Leads.from_json(news, "news")
    except ProtocolError:
        return
    assert 0 <= found.term <= MAX_ID
    assert found.leader is None or (len(found.leader[0]) <= 256 and 0 <= found.leader[1] < 65536)


@pytest.mark.parametrize("part", ["term"])
def test_a_term_is_needed(part):
    with pytest.raises(ProtocolError, match=part):
        Leads.from_json({name: value for name, value in NEWS.items() if name != part}, "news")
