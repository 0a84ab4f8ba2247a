"""Messages between the server's processes, and the job one of them carries."""

import os

from rpcsys.server.sandbox import messages
from rpcsys.server.sandbox.messages import Job


def test_one_message_with_a_descriptor():
    here, there = messages.pair()
    reader, writer = os.pipe()
    messages.tell(here, writer, spawn=3)
    messages.tell(here, kill=3)
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


def test_a_descriptor_that_was_received_is_not_inherited():
    here, there = messages.pair()
    messages.tell(here, 0, spawn=1)
    _, descriptor = messages.receive(there)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    here.close()
    there.close()


def test_a_job_is_any_bytes_and_any_path():
    job = Job("tvm", bytes(range(256)), "/tmp/ä\udc80", "k", "peer", 1.5, "L", {"load_library": ["a.so"]})
    assert Job.from_bytes(job.to_bytes()) == job
