from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.pytest_plugin.needs import BoardNeed, lab_keys, need_of, split_keys


def node(*args: object, **kwargs: object) -> SimpleNamespace:
    return SimpleNamespace(get_closest_marker=lambda name: SimpleNamespace(args=args, kwargs=kwargs))


def test_a_marker_says_what_a_test_needs() -> None:
    assert need_of(node("rpi4", count=2)) == BoardNeed("rpi4", {}, 2)
    assert need_of(SimpleNamespace(get_closest_marker=lambda name: None)) == BoardNeed()
    with pytest.raises(pytest.fail.Exception, match=r"takes key, labels, count, .* and nothing else"):
        need_of(node(lables={"arch": "aarch64"}))


@given(st.lists(st.from_regex(r"[a-z0-9.-]{1,9}", fullmatch=True), min_size=1, max_size=5))
def test_keys_are_split_at_commas(keys: list[str]) -> None:
    assert split_keys(" , ".join(keys)) == list(dict.fromkeys(keys))
    assert lab_keys([f"{key}=3" for key in keys]) == dict.fromkeys(keys, 3)


@given(st.text(max_size=9))
def test_any_word_is_a_key_with_a_count_or_refused(word: str) -> None:
    key, _, count = word.partition("=")
    if key and (count or "1").isdecimal() and int(count or 1) > 0:
        assert lab_keys([word]) == {key: int(count or 1)}
    else:
        with pytest.raises(pytest.UsageError, match=re.escape(repr(word))):
            lab_keys([word])


@pytest.mark.parametrize("text", ["", " ", ",,"])
def test_no_key_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="give keys"):
        split_keys(text)


def test_the_start_of_pytest_stays_light() -> None:
    """pytest imports the plugin in every project of whoever has rpcsys."""
    program = "import rpcsys.pytest_plugin, sys; print({'numpy', 'rpcsys.client', 'rpcsys.lab'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
