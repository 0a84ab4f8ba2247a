"""The table of formats: what loads a file, and what to type where nothing can."""

from __future__ import annotations

import pytest

from rpcsys.module import formats, loading, registry


@pytest.mark.parametrize(
    ("name", "suffix"), [("a.tflite", ".tflite"), ("b/c.xml", ".xml"), ("a.so", ""), ("tflite", ""), ("a.TFLITE", "")]
)
def test_the_ending_of_a_file(name: str, suffix: str) -> None:
    assert formats.suffix(name) == suffix


def test_what_is_missing() -> None:
    assert formats.how_to_install("rpcsys.litert") == (
        "package ai-edge-litert is not on the board: python3 -m pip install ai-edge-litert there"
    )
    assert formats.how_to_install("rpcsys.group") == ""


def test_each_format_has_a_kind_that_needs_its_packages() -> None:
    for ending, each in formats.FORMATS.items():
        assert registry.needs(each.kind) == loading.SUFFIXES[ending] == each.packages
