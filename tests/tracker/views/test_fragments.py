"""A page's fragments: what is drawn again, and what viewers get."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker.views import fragments
from rpcsys.tracker.views.fragments import DrawnPage, Fragment


class Counted(DrawnPage):
    """Draws a fragment's text, and notes it."""

    def __init__(self) -> None:
        self.drawn: list[str] = []
        super().__init__(self._drawn)

    def _drawn(self, fragment: Fragment) -> str:
        self.drawn.append(fragment.id)
        return f"<i>{fragment.id}={fragment.data['text']}</i>"

    def show(self, **groups: dict[str, str]) -> None:
        shown = [(group, name, text) for group, texts in groups.items() for name, text in texts.items()]
        found = [Fragment(group, name, "x", {"text": text}) for group, name, text in shown]
        asyncio.run(self.update(found))


def test_what_has_not_changed_is_not_drawn_again() -> None:
    page = Counted()
    page.show(boards={"a": "free", "b": "free"})
    first = page.version
    page.drawn.clear()
    page.show(boards={"a": "free", "b": "busy"})
    assert page.drawn == ["b"]
    assert page.html() == {"boards": "<i>a=free</i><i>b=busy</i>"}
    changed = {"boards": {"fragments": {"b": "<i>b=busy</i>"}, "order": None}}
    assert page.since(first) == {"whole": False, "groups": changed}
    assert page.since(page.version) == {"whole": False, "groups": {}}


def test_a_viewer_of_another_page_or_run_gets_all() -> None:
    page, other = Counted(), Counted()
    for each in (page, other):
        each.show(boards={"a": "free"})
    for version in (other.version, "", "x-1", page.version + "x", "-", f"{page.version}²"):
        all_of_it = {"boards": {"fragments": {"a": "<i>a=free</i>"}, "order": ["a"]}}
        assert page.since(version) == {"whole": True, "groups": all_of_it}


def test_a_group_that_is_empty_now_is_told() -> None:
    page = Counted()
    page.show(keys={"k": "x"}, boards={"a": "free"})
    first = page.version
    page.show(keys={"k": "x"})
    assert page.since(first) == {"whole": False, "groups": {"boards": {"fragments": {}, "order": []}}}


def test_a_long_page_lets_the_loop_run(monkeypatch) -> None:
    monkeypatch.setattr(fragments, "SLICE_S", 0.0)
    turns = []

    async def run() -> None:
        async def count() -> None:
            while True:
                turns.append(1)
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        await Counted().update([Fragment("boards", str(number), "x", {"text": ""}) for number in range(500)])
        counting.cancel()

    asyncio.run(run())
    assert len(turns) > 100


states = st.lists(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["free", "busy"])), max_size=8)


@given(states, st.randoms(use_true_random=False))
def test_a_viewer_who_applies_what_it_gets_sees_the_page(shown, chance) -> None:
    page, version, viewed = Counted(), "", {}
    for state in shown:
        ids = list(state)
        chance.shuffle(ids)
        page.show(boards={name: state[name] for name in ids})
        if chance.random() < 0.6:  # a viewer misses some
            viewed, version = apply(viewed, page.since(version)), page.version
    viewed = apply(viewed, page.since(version))
    assert "".join(viewed.values()) == page.html().get("boards", "")


def apply(viewed: dict[str, str], changes: dict[str, Any]) -> dict[str, str]:
    """What the page's script does."""
    change = changes["groups"].get("boards", {"fragments": {}, "order": [] if changes["whole"] else None})
    known = {**viewed, **change["fragments"]}
    return known if change["order"] is None else {name: known[name] for name in change["order"]}
