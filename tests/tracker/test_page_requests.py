"""A lab's guard of its page against any request: nothing but health is shown without a right."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpcsys.daemon.guard import PageRequest
from rpcsys.tracker import lab_folder
from rpcsys.tracker.lab import RunningLab
from rpcsys.tracker.page_guard import PageGuard
from rpcsys.tracker.strangers import Strangers
from rpcsys.tracker.views.metrics import LabCounts
from rpcsys.wire import tokens
from rpcsys.wire.tokens import HolderKind

NOW = 1_900_000_000.0
OTHER = tokens.new(HolderKind.PERSON).text


class Guarded:
    def __init__(self, folder) -> None:
        self.token = lab_folder.create(folder / "lab", "basement", ["lab-host:9190"], "mo").token
        self.lab = RunningLab(folder / "lab")
        self.loop = asyncio.new_event_loop()
        self.counts = LabCounts()
        self.guard = PageGuard(self.lab, Strangers(self.loop, self.counts), lambda: NOW)

    def refuses(self, asked: PageRequest) -> bool:
        refused = self.loop.run_until_complete(self.guard(asked))
        text = "" if refused is None else refused.text
        assert self.token[-43:] not in text
        assert OTHER[-43:] not in text
        return refused is not None

    def close(self) -> None:
        self.lab.close()
        self.loop.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[Guarded]:
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(Guarded(tmp_path_factory.mktemp("lab"))) as made:
        patch.setattr("rpcsys.tracker.strangers.LATER_S", 0.0)
        yield made


paths = st.sampled_from(["/", "/metrics", "/healthz", "/healthz/", "//healthz", "/api/lab"]) | st.text(max_size=30)
hosts = st.sampled_from(["", "localhost", "lab-host:8190", "127.0.0.1", "evil.example"]) | st.text(max_size=20)
addresses = st.sampled_from(["127.0.0.1", "::1", "10.9.0.7", "fd00::7", "", "0.0.0.0"])
words = st.sampled_from(["", "Bearer ", "bearer", "Basic ", "Bearer x", f"Bearer {OTHER}", OTHER]) | st.text(
    max_size=40
)


def from_here(address: str, local: str) -> bool:
    """Whether nobody else hears a request: it comes from this machine."""
    return address in ("127.0.0.1", "::1") or address == local != ""


@example("/healthz", "127.0.0.1", "::1", False, "", "", OTHER)
@example("/healthz", "10.9.0.7", "", False, "", "", OTHER)
@given(paths, addresses, addresses, st.booleans(), hosts, hosts, words)
def test_without_a_members_token_only_health_is_shown(guarded, path, address, local, tls, host, origin, said) -> None:
    asked = PageRequest(path, path.partition("?")[0], address, local, tls, host, origin, said)
    health = asked.path == "/healthz" and not ("rpcsys_" in said and not tls and not from_here(address, local))
    assert guarded.refuses(asked) or health


@given(paths, addresses, hosts, st.sampled_from(["", "?token={}", "/{}"]))
def test_a_members_token_shows_pages_where_nobody_else_can_read_it(guarded, path, address, host, behind) -> None:
    url = path + behind.format(guarded.token)
    for local, tls in ((address, False), ("10.9.0.1", True), ("10.9.0.1", False)):
        asked = PageRequest(url, path, address, local, tls, host, "", f"Bearer {guarded.token}")
        assert guarded.refuses(asked) == (bool(behind) or not (tls or from_here(address, local)))
