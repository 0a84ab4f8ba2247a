"""What holds after any records: a model that is told everything agrees."""

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.live_state import LiveState

names = st.sampled_from("ab")
kinds = {
    **dict.fromkeys(("granted", "begun", "limited", "over"), "lease"),
    **dict.fromkeys(("waiting", "waited"), "ticket"),
    **dict.fromkeys(("joined", "gone", "set_aside", "trusted", "drained", "enabled", "healthy"), "server"),
}
record = st.builds(
    lambda kind, name, at: HistoryEntry(at, kind, {kinds[kind]: name}),
    st.sampled_from(sorted(kinds)),
    names,
    st.integers(0, 99),
)


def sane(records):
    """A lease begins once before it is over."""
    out = set()
    for one in records:
        if one.kind == "granted":
            if one.details["lease"] in out:
                continue
            out.add(one.details["lease"])
        elif one.kind == "over":
            out.discard(one.details["lease"])
        yield one


histories = st.lists(record, max_size=12).map(lambda records: list(sane(records)))


def holding(records):
    """What `LiveState` is for, said another way: each record, unless a later one ends or replaces it."""
    ended_by = {
        "granted": ("over",),
        "begun": ("over",),
        "limited": ("over",),
        "waiting": ("waited",),
        "joined": ("gone",),
        "set_aside": ("trusted", "enabled"),
        "drained": ("enabled",),
    }
    found = []
    for index, one in enumerate(records):
        about = one.details[kinds[one.kind]]
        later = [r.kind for r in records[index + 1 :] if r.details.get(kinds[one.kind]) == about]
        granted = any(
            r.kind == "granted"
            and r.details["lease"] == about
            and not any(o.kind == "over" and o.details["lease"] == about for o in records[i:index])
            for i, r in enumerate(records[:index])
            if kinds[r.kind] == "lease"
        )
        if one.kind not in ended_by or {one.kind, *ended_by[one.kind]} & set(later):
            continue
        if one.kind in ("begun", "limited") and not granted:
            continue
        found.append(one)
    return found


@given(histories)
def test_what_holds_is_what_nothing_later_ends(records):
    live = LiveState()
    mirrored = {}
    for one in records:
        for fact, holds in live.fold(one).items():
            if holds is None:
                del mirrored[fact]
            else:
                mirrored[fact] = holds
    assert list(live.values()) == holding(records)
    assert mirrored == live


@given(histories)
def test_what_holds_is_enough_to_go_on(records):
    live = LiveState(records)
    assert list(LiveState(live.values()).items()) == list(live.items())
