"""How many connections an address may have."""

from rpcsys.daemon.acceptor import LOG_EVERY_S
from rpcsys.tracker.admission import Admission
from rpcsys.tracker.relays import Relays


def test_so_many_of_each_address(caplog):
    now = 0.0
    admission = Admission(2, Relays.of(["10.0.0.9"]), lambda: now)
    asked = [admission.admit(address, "10.0.0.1") for address in ("a", "a", "a", "b", "a", "10.0.0.1")]
    assert asked == [True, True, False, True, False, True]
    assert len(caplog.records) == 1
    assert "--max-connections-per-address" in caplog.text
    now = LOG_EVERY_S
    assert not admission.admit("a", "10.0.0.1")
    assert len(caplog.records) == 2
    admission.leave("a", "10.0.0.1")
    assert admission.admit("a", "10.0.0.1")


def test_proxies_that_are_believed_count_for_nobody():
    named, this_machine = (Admission(1, Relays.of(texts), float) for texts in (["10.0.0.9"], []))
    for _ in range(3):
        assert named.admit("10.0.0.9", "10.0.0.1")
        assert this_machine.admit("127.0.0.1", "127.0.0.1")
    assert named.admit("127.0.0.1", "127.0.0.1")
    assert not named.admit("127.0.0.1", "127.0.0.1")


def test_nothing_is_left_of_those_that_have_gone():
    admission = Admission(1, Relays.of([]), float)
    assert admission.admit("10.0.0.5", "10.0.0.1")
    admission.leave("10.0.0.5", "10.0.0.1")
    assert not admission._counted.counts
