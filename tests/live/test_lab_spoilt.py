"""Openings of sessions and links to a tracker that are cut or changed on the way: none of them opens anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rpcsys import errors
from rpcsys.link.link import Link
from tests.live.middle import OURS, Site, behind_the_greeting, check_unharmed, middle_site, records
from tests.live.probe import SESSION_MAGIC, SealedProbe
from tests.live.recording_relay import Change, cut_at, nothing, recording

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with middle_site(tmp_path_factory.mktemp("middle")) as site:
        yield site


@pytest.fixture
def site(whole: Site) -> Iterator[Site]:
    yield whole
    check_unharmed(whole)


def changed_at(place: int, *, in_up: bool) -> Change:
    """Flip a bit of one byte."""

    def change(data: bytes, *, up: bool, before: int) -> bytes:
        at = place - before
        if up is not in_up or not 0 <= at < len(data):
            return data
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return change


@pytest.mark.parametrize("options", [OURS, ""], ids=["session", "front"])
@pytest.mark.parametrize("in_up", [True, False], ids=["said", "answered"])
@pytest.mark.parametrize("spoil", [cut_at, changed_at])
def test_an_opening_that_is_spoilt_at_any_byte_opens_nothing(
    site: Site, options: str, in_up: bool, spoil: Callable[..., Change]
) -> None:
    def opened() -> bool:
        with site.lease() as lease:
            public = lease["matchkey"].rpartition("-")[0]
            try:
                with SealedProbe(site.line.address, public, lease["matchkey"], options, timeout_s=20) as probe:
                    return probe.code == SESSION_MAGIC
            except (OSError, EOFError):
                return False

    assert opened()
    passed = site.line.connections[-1]
    said = bytes(passed.up if in_up else passed.down)
    sealed = len(said) - len(behind_the_greeting(said))
    whole = sealed + sum(5 + size for _, size in records(said[sealed:])[: 3 if in_up else -1])
    assert 300 < whole < 3000
    # The greeting in the clear decides nothing, and TLS has no use for the version in the first record's header.
    harmless = {*range(sealed), sealed + 2} if spoil is changed_at else set()
    for place in range(0, whole, 3 if spoil is changed_at else 1):
        site.line.change = spoil(place, in_up=in_up)
        assert not opened() or place in harmless, place


@pytest.mark.parametrize("in_up", [True, False], ids=["said", "answered"])
@pytest.mark.parametrize("spoil", [cut_at, changed_at])
def test_a_login_that_is_spoilt_is_none(site: Site, in_up: bool, spoil: Callable[..., Change]) -> None:
    """Not at every byte: after twenty failures, the tracker reads a network's connections a second late."""
    with recording(site.tracker.address) as line:
        with Link.open(line.address, credential=site.lab.keeper, timeout=20) as link:
            assert link.tracker["member"] == "mo"
        (passed,) = line.connections
        said = bytes(passed.up if in_up else passed.down)
        end = len(said) - 60  # behind it are words of farewell, or none
        assert end > 300
        for place in [0, 5, *range(11, end, 7)]:
            line.change = spoil(place, in_up=in_up)
            with pytest.raises(errors.RpcsysError):
                Link.open(line.address, credential=site.lab.keeper, timeout=20)
        line.change = nothing
        Link.open(line.address, credential=site.lab.keeper, timeout=20).close()
