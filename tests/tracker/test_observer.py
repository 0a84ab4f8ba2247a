"""The log lines of leases, which are made in a faster way, have the same fields as the general form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.logs import pairs
from rpcsys.tracker.observer import QUIET, log_words

NAMES = st.sampled_from(["", "ann", "a b", 'say "hi"', "x=1", "board\n3", "ü", "10.0.0.5"])
SECONDS = st.floats(0, 1e6)
COMMON = {**dict.fromkeys(("lease", "key", "server", "user", "address"), NAMES), "epoch": st.integers(1, 1 << 50)}
GRANTED = st.fixed_dictionaries(
    {
        **COMMON,
        "limit_s": st.none() | SECONDS,
        "waited_s": SECONDS,
        "priority": st.integers(-3, 3) | SECONDS,
        "arrival": st.integers(1, 1 << 50),
        "how": st.sampled_from(["ours", "silent"]),
    }
)
OVER = st.fixed_dictionaries(
    {
        **COMMON,
        "since": SECONDS,
        "held_s": SECONDS,
        "outcome": st.sampled_from(["closed", "lost"]),
        "reason": NAMES,
        "fault": NAMES,
        "cleaned": st.dictionaries(st.sampled_from(["processes", "bytes"]), st.integers(0, 9)),
    }
)


def in_any_order(text):
    return sorted(text.split(" "))


@given(GRANTED)
def test_a_granted_line_equals_the_general_form(fields):
    lease = fields["lease"] = fields["lease"] or "4f2a-17"
    text = log_words("granted", fields)
    assert in_any_order(text) == in_any_order(pairs(fields, QUIET))
    assert text.startswith(pairs({"lease": lease}))


@given(OVER)
def test_an_over_line_equals_the_general_form(fields):
    fields["lease"] = fields["lease"] or "4f2a-17"
    assert in_any_order(log_words("over", fields)) == in_any_order(pairs(fields, QUIET))


@pytest.mark.parametrize("kind", ["begun", "joined", "something new"])
def test_other_entries_use_the_general_form(kind):
    assert log_words(kind, {"lease": "a-1", "epoch": 7, "peer": "10.0.0.9"}) == "lease=a-1 peer=10.0.0.9"
