"""The pages for people: whole documents, what has changed, and names that would be markup."""

from __future__ import annotations

import asyncio
import json
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcsys.daemon.http import NoPage
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.views import live_pages
from rpcsys.tracker.views.live_pages import LivePages
from rpcsys.tracker.views.past import Past
from rpcsys.tracker.views.paths import BOARD, KEY, LEASE, PagePath
from rpcsys.wire.keys import is_key
from tests.tracker.transcripts import Scene


class Told:
    """A history that says what it was told."""

    def __init__(self, **past: Past) -> None:
        self.past = past
        self.asked = 0

    async def of_board(self, name: str) -> Past:
        self.asked += 1
        return self.past.get("board", Past())

    async def of_key(self, key: str, at: float) -> Past:
        return self.past.get("key", Past())

    async def of_lease(self, name: str) -> Past:
        return self.past.get("lease", Past())


def pages(scene: Scene, **past: Past) -> LivePages:
    return LivePages(scene.state.records, Told(**past), lambda: scene.now)


async def get(made: LivePages, path: str) -> str:
    page = made.at(path)
    assert page is not None
    content = page()
    assert not isinstance(content, tuple)
    return (await content)[1].decode()


async def changes(made: LivePages, path: str, version: str = "x-1") -> dict[str, Any]:
    return json.loads(await get(made, f"/live/{version}{path}"))


def lab(scene: Scene) -> str:
    """A board that is leased, and one that waits; the lease."""
    scene.put(scene.server("rpi4", "shelf"), "rpi4:1")
    scene.request(scene.client("ann"))
    scene.ask(scene.client("bo"), "request", key="rpi4")
    return next(iter(scene.state.records.leases))


def test_pages_are_whole_documents_and_link_each_other(scene) -> None:
    lease = lab(scene)

    async def read() -> None:
        made = pages(scene)
        home = await get(made, "/")
        assert home.startswith("<!doctype html>")
        for path in ("/board/shelf", "/key/rpi4", f"/lease/{lease}"):
            assert f'href="{path}"' in home
            assert '<a href="/">' in await get(made, path)
        assert "bo @ 10.0.0.5" in await get(made, "/key/rpi4")
        assert "ann @ 10.0.0.5" in await get(made, f"/lease/{lease}")
        assert "<title>any key (by label) · key" in await get(made, "/key/")

    asyncio.run(read())


def test_a_viewer_gets_what_has_changed(scene) -> None:
    lab(scene)

    async def read() -> None:
        made = pages(scene)
        first = await changes(made, "/")
        assert first["title"] == "Device lab: 1 waiting"
        scene.wait(2)
        again = await changes(made, "/", first["version"])
        assert (again["groups"], again["now"]) == ({}, scene.now)
        scene.server("gpu", "tower", 7)
        scene.wait(2)
        groups = (await changes(made, "/", again["version"]))["groups"]
        assert list(groups["boards"]["fragments"]) == ["tower"]
        assert groups["boards"]["order"] == ["tower", "shelf"]
        assert "boards-head" in groups

    asyncio.run(read())


def test_a_page_is_made_once_for_all_who_ask_within_a_second(scene) -> None:
    lab(scene)

    async def read() -> None:
        told = Told()
        made = LivePages(scene.state.records, told, lambda: scene.now)
        await asyncio.gather(*(get(made, "/board/shelf") for _ in range(5)))
        assert told.asked == 1
        scene.wait(1.5)
        await get(made, "/board/shelf")
        assert told.asked == 2

    asyncio.run(read())


@pytest.mark.parametrize("path", ["/board/nothing", "/lease/x-1", "/key/nothing", "/live/x-1/board/nothing", "/board/"])
def test_what_nobody_knows_is_404_in_one_line(scene, path) -> None:
    with pytest.raises(NoPage) as refused:
        asyncio.run(get(pages(scene, board=Past(problem="it keeps none")), path))
    status, text = refused.value.args
    assert (status, text.count("\n")) == (404, 0)
    assert ("it keeps none" if "board" in path else "the history has none") in text


def test_a_lease_that_ends_is_shown_until_the_history_has_it(scene) -> None:
    lease = lab(scene)

    async def read() -> None:
        made = pages(scene)
        await get(made, f"/lease/{lease}")
        scene.leave(1)
        scene.wait(20)
        assert lease not in scene.state.records.leases
        with pytest.raises(NoPage):
            await get(made, f"/lease/{lease}")

    async def read_soon() -> None:
        made = pages(scene)
        await get(made, "/board/shelf")
        scene.state.records.gone.clear()
        scene.now += 2
        assert "shelf" in await get(made, "/board/shelf")

    asyncio.run(read())
    lab(scene)
    asyncio.run(read_soon())


@pytest.mark.parametrize(("most", "fragments", "kept"), [(3, 20_000, 3), (256, 15, 4), (256, 1, 1)])
def test_pages_that_are_kept_are_bounded(scene, monkeypatch, most, fragments, kept) -> None:
    monkeypatch.setattr(live_pages, "MAX_KEPT", most)
    monkeypatch.setattr(live_pages, "MAX_FRAGMENTS", fragments)
    for number in range(6):
        scene.server("rpi4", f"board{number}", port=number + 1)

    async def read() -> None:
        made = pages(scene)
        for number in range(6):
            await get(made, f"/board/board{number}")
        assert [page.name for page in made._kept] == [f"board{number}" for number in range(6 - kept, 6)]

    asyncio.run(read())


def test_other_paths_are_no_pages(scene) -> None:
    made = pages(scene)
    for path in ("", "/nothing", "/live/", "/live/x", "/live/x/nothing/y", "/live", "/board"):
        assert made.at(path) is None


# Names.

texts = st.one_of(
    st.sampled_from(
        ["<script>alert(1)</script>", "</td><img src=x onerror=a>", '" onload="x', "' x='", "&lt;b&gt;", "]]>"]
    ),
    st.text(min_size=1, max_size=40),
).filter(str.isprintable)
keys = st.text(min_size=1, max_size=40).filter(is_key) | st.sampled_from(["<b>", '"onload="x', "__proto__"])


class Outline(HTMLParser):
    """The tags and the names of attributes of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", ()))


def outlines(key: str, board: str, user: str, label: str, line: str, lease: str) -> dict[str, Outline]:
    """All pages of a lab with these names."""
    scene = Scene()
    scene.wait(60)
    server = scene.server(key, board, labels={label: line}, devices=[user, label])
    scene.put(server, f"{key}:1")
    scene.request(scene.client(user), key=key)
    scene.ask(scene.client(user), "request", key=key, labels={label: "=" + line})
    other = scene.server(key, "x" + board, 1, running=[{"lease": lease, "epoch": 1, "since_s": 1.0}])
    scene.ask(scene.client(user), "drain", server="x" + board)
    scene.ask(other, "health", problem=line)
    over = {
        "lease": lease, "key": key, "server": board, "user": user, "address": user, "how": "ours", "since": 1.0,
        "begun": None, "ended": 9.0, "held_s": 8.0, "limit_s": None, "waited_s": 3.0, "outcome": "closed",
        "reason": line, "fault": line, "cleaned": {line: [line, user]},
    }  # fmt: skip
    events = [HistoryEntry(1.0, "gone", {"reason": line}), HistoryEntry(1.0, line, {"by": user})]
    usage = [{"user": user, "held_s": 1.0, "leases": 1, "waited_s": 1.0, "faults": 0}]
    made = pages(scene, board=Past([over], events), key=Past(usage=usage), lease=Past([over]))
    names = [PagePath(BOARD, board), PagePath(BOARD, "x" + board), PagePath(KEY, key), PagePath(LEASE, lease + "-1")]

    async def read() -> dict[str, Outline]:
        return {path: Outline(await get(made, path)) for path in ("/", *(page.path for page in names))}

    return asyncio.run(read())


PLAIN = outlines("k", "b", "u", "l", "v", "e")
TAGS = {tag for shown in PLAIN.values() for tag in shown.tags}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])  # of six names each
@given(keys, texts, texts, texts, texts, texts)
def test_names_never_become_markup(key, board, user, label, line, lease) -> None:
    found = outlines(key, board, user, label, line, lease)
    for shown in found.values():
        assert {*shown.tags} <= TAGS
        assert sum(tag == "script" for tag, _ in shown.tags) == 1
        assert sum(tag == "img" for tag, _ in shown.tags) == 1
    text = "".join(shown.text for shown in found.values())
    assert all(name in text for name in (key, board, user, line, lease))
