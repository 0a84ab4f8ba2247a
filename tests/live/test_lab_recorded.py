"""A day's work in a lab, with every byte on every line recorded, and every place where a secret could be left."""

from __future__ import annotations

import base64
import os
import urllib.request
from collections.abc import Iterator

import pytest

from tests.live import recorded_lab
from tests.live.daemons import Daemons
from tests.live.recorded_lab import RecordedLab
from tests.live.secret_search import ProcessesSeen, Secrets

pytest.importorskip("tvm")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RecordedLab, ProcessesSeen]]:
    """A closed lab after a day's work, and what processes have shown meanwhile."""
    folder = tmp_path_factory.mktemp("closed")
    daemons = Daemons(folder)
    with ProcessesSeen(os.getpid()) as seen, recorded_lab.recorded_lab(folder, daemons, closed=True) as lab:
        recorded_lab.work(lab)
        yield lab, seen
        daemons.stop()


def test_no_line_of_a_closed_lab_has_what_is_sent_over_it(lab: tuple[RecordedLab, ProcessesSeen]) -> None:
    site, _ = lab
    said = [line.said for line in site.lines]
    assert all(len(each) > 30_000 for each in said)
    assert [site.markers.found_in(each) | site.secrets.found_in(each) for each in said] == [set()] * 3
    kinds = {name.partition(" of ")[0] for name in [*site.markers, *site.secrets]}
    assert kinds >= {"array", "text", "file", "function", "model", "token", "invitation", "match key"}


@pytest.mark.open_lab("it shows that the recorder works")
def test_each_line_of_an_open_lab_has_it(daemons: Daemons, tmp_path) -> None:
    """The recorder records, and the search finds."""
    with recorded_lab.recorded_lab(tmp_path, daemons, closed=False) as lab:
        recorded_lab.work(lab)
        _, to_proxy, to_board = (line.said for line in lab.lines)
        assert lab.markers.found_in(to_proxy) == {name for name in lab.markers if recorded_lab.BEHIND in name}
        assert lab.markers.found_in(to_proxy + to_board) == set(lab.markers)
        daemons.stop()


def test_no_secret_is_in_a_log_or_a_file(lab: tuple[RecordedLab, ProcessesSeen]) -> None:
    site, _ = lab
    logs = [path for daemon in site.daemons.started for path in (daemon.stdout_path, daemon.stderr_path)]
    kept = [path for path in site.path.iterdir() if path.suffix != ".pem"]
    assert {"audit.jsonl", "lab.sqlite", "lab.json", "policy.toml"} <= {path.name for path in kept}
    assert any((site.folder / "state").iterdir())
    assert site.secrets.found_in_files([*logs, *kept, site.folder / "state", site.folder / "cache"]) == {}


def test_no_secret_is_on_a_command_line_or_in_an_environment(lab: tuple[RecordedLab, ProcessesSeen]) -> None:
    site, seen = lab
    assert {"rpcsys-front", "rpcsys-tvm"} <= seen.names
    assert len(seen.seen) > 20
    assert seen.found(site.secrets) == {}


def test_no_secret_is_in_what_people_are_shown(lab: tuple[RecordedLab, ProcessesSeen]) -> None:
    site, _ = lab
    for name, pages in {"tracker": ("", "api/summary", "metrics", "healthz"), "board": ("metrics", "healthz"),
                        "proxy": ("metrics", "healthz")}.items():  # fmt: skip
        for page in pages:
            with urllib.request.urlopen(f"http://127.0.0.1:{site.ports[name]}/{page}", timeout=30) as answer:
                site.shown.append(answer.read().decode())
    assert len(site.shown) > 30
    assert {text: found for text in site.shown if (found := site.secrets.found_in(text))} == {}


def test_the_search_finds_each_form() -> None:
    secrets, token, weights = Secrets(), os.urandom(13), os.urandom(999)
    secrets.add("token", token)
    secrets.add_large("model", weights)
    for before in range(4):
        text = os.urandom(before) + token + os.urandom(7)
        for form in (text, text.hex(), text.hex().upper(), base64.b64encode(text), base64.urlsafe_b64encode(text)):
            assert secrets.found_in(form) == {"token"}
    for at in range(0, 980, 7):
        assert secrets.found_in(os.urandom(at) + weights[at : at + 16] + b"more") == {"model"}
    assert secrets.found_in(os.urandom(100_000)) == set()
