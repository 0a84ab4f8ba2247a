"""Messages between the server's processes, and jobs."""

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.server.sandbox import messages
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.sandbox.session_user import User

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=2000),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.sampled_from(["kind", "functions"]), inner),
    max_leaves=50,
)


def as_message(fields):
    return json.dumps(fields).encode()


def test_a_message_carries_a_descriptor():
    here, there = messages.pair()
    reader, writer = os.pipe()
    messages.send_json(here, writer, spawn=3)
    messages.send_json(here, kill=3)
    data, descriptor = messages.receive(there)
    assert data == b'{"spawn": 3}'
    os.write(descriptor, b"x")
    assert os.read(reader, 1) == b"x"
    assert messages.receive(there) == (b'{"kill": 3}', None)
    here.close()
    assert messages.receive(there) == (b"", None)
    for each in (reader, writer, descriptor):
        os.close(each)
    there.close()


def test_the_last_message_of_a_peer_that_has_not_read_all_arrives():
    here, there = messages.pair()
    messages.send_json(here, renewed=1)
    messages.send_json(there, outcome="closed")
    there.close()
    with here:
        assert messages.receive(here) == (as_message({"outcome": "closed"}), None)
        assert messages.receive(here) == (b"", None)


def test_a_received_descriptor_is_not_inherited():
    here, there = messages.pair()
    messages.send_json(here, 0, spawn=1)
    _, descriptor = messages.receive(there)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    here.close()
    there.close()


def test_a_job_may_have_any_bytes_and_any_path():
    options = {"load_library": ["a.so"], "cache": None, "deployed": {"workers": 1}}
    job = Job("tvm", bytes(range(256)), "/tmp/ä\udc80", "k", "peer", 1.5, "L", options, user=User(1, 2, (3,)))
    assert Job.from_bytes(job.to_bytes()) == job


FIELDS = {**messages.OF_ZYGOTE, **messages.OF_SERVICE}


@given(st.binary(max_size=200) | st.dictionaries(st.sampled_from([*FIELDS, "else"]), json_values).map(as_message))
def test_any_message_is_checked_field_by_field_or_refused(data):
    try:
        parsed = messages.parse(data, FIELDS)
    except ProtocolError:
        return
    assert parsed.keys() <= FIELDS.keys()
    assert all(len(parsed[name]) <= messages.MAX_LINE for name in ("importing", "failed", "shared") if name in parsed)
    assert all(len(parsed[name]) <= messages.MAX_NAMES for name in ("cleaned", "removed") if name in parsed)


def test_the_last_of_several_messages_is_read_without_waiting():
    here, there = messages.pair()
    with here, there:
        assert messages.last(there) is None
        messages.send_json(here, until=1.0)
        messages.send_json(here, until=2.0)
        assert messages.last(there) == {"until": 2.0}
        messages.send_json(here, until=None)
        here.close()
        assert messages.last(there) == {"until": None}
        assert messages.last(there) is None


@pytest.mark.parametrize(("span_s", "later"), [(math.inf, False), (10.0, True)])
def test_a_child_that_sends_too_much_is_refused_until_its_span_is_over(span_s, later):
    allowance = messages.Allowance(100.0, 4, span_s)
    allowance.spend(101.0, 10)
    allowance.spend(102.0, 2 * 1024)  # counts as three messages
    with pytest.raises(ProtocolError, match="sends too much"):
        allowance.spend(103.0, 10)
    if later:
        allowance.spend(110.0, 10)
    else:
        with pytest.raises(ProtocolError):
            allowance.spend(110.0, 10)
