"""Versions are parsed from any text, and their order is total. That of Python packages is the one of PEP 440."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.version import Version as Reference

from rpcsys.tracker.versions import numbers_in, parse

NUMBERS = st.integers(0, 30)
PEP_440 = st.builds(
    lambda epoch, release, pre, post, dev: epoch + ".".join(map(str, release)) + pre + post + dev,
    st.sampled_from(["", "0!", "1!"]),
    st.lists(NUMBERS, min_size=1, max_size=4),
    st.one_of(st.just(""), st.builds("{}{}{}".format, st.sampled_from(["", ".", "-"]),
                                     st.sampled_from(["a", "b", "c", "rc", "alpha", "beta", "pre"]), NUMBERS)),
    st.one_of(st.just(""), st.builds(".post{}".format, NUMBERS), st.builds("-{}".format, NUMBERS),
              st.builds("-r{}".format, NUMBERS)),
    st.one_of(st.just(""), st.builds(".dev{}".format, NUMBERS)),
)  # fmt: skip
KERNELS = st.builds(
    "{}.{}.{}-{}-{}".format, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["amd64", "raspi", "tegra", "v8+", ""])
)
ANY = st.one_of(st.text(), st.text(alphabet="0123456789abrcpostdev.-_+! vV"), PEP_440, KERNELS)

RISING = [
    ["1.0.dev1", "1.0a1.dev2", "1.0a1", "1.0a2", "1.0b1", "1.0rc1", "1", "1.0.post1.dev3", "1.0.post1", "1.0.1", "1!0"],
    ["1.9", "1.22rc2", "1.22", "1.22.1+cpu", "1.100"],
    ["0.26.9", "0.27.dev0", "0.27.0", "0.27.0.post1", "0.28"],
    ["4.19.253-l4t-r32.7", "5.10.104-tegra", "5.15.0-1034-raspi", "6.1.0-9-amd64", "6.1.0-13-amd64", "6.1.21-v8+"],
    ["6.8.0-rc3", "6.8.0", "6.8.0-r2", "6.8.1-arch1-1"],
    ["3.11.0rc1", "3.11.7", "3.12"],
    ["535.54.03", "535.129.03", "550.54.15"],
]
SAME = [
    ("1.22", "1.22.0"),
    ("v12.10", "12.10.0"),
    ("1.0RC1", "1.0-c.1"),
    ("1.0-1", "1.0.post1"),
    ("1.0.REV2", "1.0-r2"),
    ("3.11.7+", "3.11.7"),
    ("0.0", "0"),
]


@pytest.mark.parametrize("texts", RISING, ids=lambda texts: texts[0])
def test_later_versions_are_higher(texts):
    versions = [parse(text) for text in texts]
    assert all(early.order(late) < 0 < late.order(early) for early, late in pairwise(versions))
    assert sorted(set(versions)) == versions


@pytest.mark.parametrize(("text", "other"), SAME)
def test_two_texts_of_one_version(text, other):
    assert parse(text) == parse(other)


@pytest.mark.parametrize("text", ["", "many", ".onnx", "1" * 65, "-1", "٣.١", "\n", "musl-", "x.y"])
def test_other_texts_are_no_versions(text):
    assert parse(text) is None
    assert numbers_in(text) == 0 or len(text) > 64


def test_what_is_behind_a_version_counts_only_where_both_have_it():
    amd64, bare = parse("6.1.0-13-amd64"), parse("6.1.0-13")
    assert amd64.order(bare) == 0
    assert bare.order(amd64) < 0
    assert amd64.order(parse("6.1.0-13-cloud")) < 0
    assert parse("2.6+cu118").order(parse("2.6")) == 0


def test_a_series_holds_all_versions_that_begin_so():
    series = parse("3.11")
    assert [text for text in ("3.11", "3.11.2", "3.11.7+", "3.11rc1", "3.1", "3.12", "1!3.11.2", "4")
            if parse(text).is_in(series, 2)] == ["3.11", "3.11.2", "3.11.7+", "3.11rc1"]  # fmt: skip
    assert not parse("3.1").is_in(parse("3.0"), numbers_in("3.0"))
    assert parse("3").is_in(parse("3.0"), numbers_in("3.0"))


def test_a_word_before_the_numbers_belongs_to_the_version():
    assert parse("musl-1.2.5").word == "musl"
    assert parse("R36.2").word == "r"
    assert parse("v1").word == ""


@given(PEP_440, PEP_440)
@example("1.0-1", "1.0.post1")
def test_the_order_is_that_of_pep_440(text, other):
    ours, theirs = parse(text).order(parse(other)), (Reference(text), Reference(other))
    assert ours == (theirs[0] > theirs[1]) - (theirs[0] < theirs[1])


@given(ANY)
@example("1" * 64)
@example("1!" * 32)
def test_any_text_is_a_version_or_none(text):
    found = parse(text)
    if found is not None:
        assert numbers_in(text) >= 1
        assert found.order(found) == 0
        assert hash(found) == hash(parse(text))


@given(st.lists(ANY, max_size=4))
def test_the_order_is_total(texts):
    versions = sorted(filter(None, map(parse, texts)))
    for early, late in pairwise(versions):
        assert early <= late
        assert (early == late) == (not early < late)
    assert all(early <= late for early in versions for late in versions[versions.index(early) :])
