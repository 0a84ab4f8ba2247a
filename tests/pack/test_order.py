from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.pack.order import by_likeness

WORDS = {"red": b"scarlet crimson vermilion", "blue": b"azure cobalt ultramarine"}


def colour(name: str) -> str:
    return name.partition("/")[2][:3]


def test_what_is_alike_stands_together() -> None:
    files = {
        f"{folder}/{name}{i}.py": words * i
        for name, words in WORDS.items()
        for i in (1, 2)
        for folder in "ab"
    }
    colours = [colour(name) for name in by_likeness(files)]
    assert sorted(files) == sorted(by_likeness(files))
    assert colours in ([*["red"] * 4, *["blu"] * 4], [*["blu"] * 4, *["red"] * 4])


def test_what_is_no_source_comes_first_by_folder_and_size() -> None:
    files = {"b/x.py": b"", "b/long": b"12", "b/short": b"1", "a/lib.so": b"123"}
    assert by_likeness(files) == ["a/lib.so", "b/short", "b/long", "b/x.py"]


@given(st.dictionaries(st.text("ab/", min_size=1).map("{}.py".format), st.binary(max_size=40), max_size=12))
def test_the_same_files_have_the_same_order(files: dict[str, bytes]) -> None:
    shuffled = list(files.items())
    random.Random(1).shuffle(shuffled)
    assert by_likeness(files) == by_likeness(dict(shuffled))
    assert sorted(by_likeness(files)) == sorted(files)
