"""The facts of devices, and the wants of requests: exact values, numbers and versions."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpcsys.tracker.labels import ANY, facts_of, facts_of_key, value_of, wants_of, wants_of_key
from rpcsys.wire.labels import MAX_WANTED, OPERATORS, VERSIONS

NAMES = st.sampled_from(["cores", "rev", "site"])
NUMBERS = st.integers(-3, 9)


@given(st.dictionaries(NAMES, NUMBERS), st.dictionaries(NAMES, NUMBERS), st.dictionaries(NAMES, NUMBERS))
def test_a_device_fits_if_every_label_does(has, exact, least):
    labels = {**{name: f">={number}" for name, number in least.items()}, **{n: str(v) for n, v in exact.items()}}
    least = {name: number for name, number in least.items() if name not in exact}
    wants = wants_of("rpi4", labels)
    facts = facts_of("rpi4", "board", {name: str(number) for name, number in has.items()}, ())
    fits = all(has.get(name) == number for name, number in exact.items())
    fits &= all(name in has and has[name] >= number for name, number in least.items())
    assert wants.fit(facts) == fits
    assert wants_of("rpi4", wants.labels) == wants


def test_labels_that_the_tracker_sets_cannot_be_set_by_a_server():
    facts = facts_of("rpi4", "board", {"key": "gpu", "server": "other", "site": "x"}, ("so", "onnx"))
    assert wants_of("rpi4", {"server": "board", "loads": "onnx", "site": "x"}).fit(facts)
    assert wants_of("", {"loads": "so"}).fit(facts)
    assert not wants_of("gpu", {}).fit(facts)
    assert not wants_of("", {"server": "other"}).fit(facts)


def test_a_device_is_wanted_by_its_name_its_kind_or_what_openvino_calls_all_of_its_kind():
    facts = facts_of("rpi4", "board", {"device": "own"}, (), ("cpu:0", "opencl:1", "openvino:GPU.0"))
    wanted = ("cpu", "opencl", "opencl:1", "=opencl:1", "openvino", "openvino:GPU", "openvino:GPU.0", "own")
    assert all(wants_of("", {"device": each}).fit(facts) for each in wanted)
    assert not any(wants_of("", {"device": each}).fit(facts) for each in ("opencl:0", "0", "gpu", "openvino:CPU", ""))


def test_a_key_alone_fits_any_device_of_the_key():
    assert wants_of("rpi4", {}) is wants_of_key("rpi4")
    assert wants_of_key("rpi4").bare
    assert wants_of_key("rpi4").fit(facts_of_key("rpi4"))
    assert not wants_of("rpi4", {"site": "x"}).bare


@pytest.mark.parametrize(
    ("key", "labels", "problem"),
    [
        ("", {}, "at least one label"),
        ("rpi4", {"": "x"}, "a label without a name wants 'x'"),
        ("rpi4", {"cores": ">=many"}, "the label cores wants '>=many', which is no number and no version"),
        ("rpi4", {"cores": "<"}, "the label cores wants '<', which is no number"),
        ("rpi4", {"onnxruntime": ">=1.22,2"}, "write comparisons like '>=1.22' or '>=1.22,<2'"),
        ("rpi4", {"onnxruntime": "1.22,<2"}, "write comparisons"),
        ("rpi4", {"onnxruntime": ">=1.22,"}, "write comparisons"),
        ("rpi4", {"onnxruntime": ">=>1.22"}, "write comparisons"),
        ("rpi4", {"loads": "!=.so"}, "the label loads has several values"),
        ("rpi4", {"device": ">=opencl:0"}, "the label device has several values"),
        ("rpi4", {"cores": ",".join([">=1"] * (MAX_WANTED + 1))}, f"more than {MAX_WANTED} comparisons of labels"),
    ],
)
def test_invalid_wants_are_refused(key, labels, problem):
    with pytest.raises(ValueError, match="label") as refused:
        wants_of(key, labels)
    assert problem in str(refused.value)


def test_wants_as_text():
    assert str(wants_of("rpi4", {"site": "x", "cores": ">= 4"})) == "'rpi4' with cores>=4, site=x"
    assert str(wants_of("", {"site": "x"})) == "any device with site=x"
    assert str(wants_of("", {"tvm": ">=0.26,!=0.27"})) == "any device with tvm>=0.26,!=0.27"


# Comparisons.

BOARD = facts_of(
    "rpi4",
    "board",
    {
        "onnxruntime": "1.22.1", "tvm": "0.27.0.post1", "python": "3.11.7+", "kernel": "6.1.0-13-amd64",
        "libc": "musl-1.2.5", "memory_gb": "4.5", "rev": "b", "cuda": "12.10", "l4t": "r36.2.0", "name": "desk-7",
    },
    (".onnx",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("label", "fitting", "others"),
    [
        ("onnxruntime", [">=1.9", ">=1.22", "<1.100", "1.22.1", "==1.22.1.0", "=1.22.*", "1.22.*", "!=1.22",
          ">=1.22,<2", ">1.22rc1"],
         ["<1.9", "1.22", "=1.22", ">=1.22,<1.22.1", "!=1.22.*", ">=2", "<=1.22"]),
        ("tvm", [">=0.27", ">0.27.0", "<0.28", "0.27.0.post1"], ["<=0.27.0", "0.27", ">=0.27.0.post2"]),
        ("python", [">=3.8", "3.11.7", "=3.11.*", "<=3.11.7"], ["<3.9", ">3.11.7", "3.1", "3.11"]),
        ("kernel", [">=5.15", "6.1.0-13-amd64", "=6.1.0-13", ">=6.1.0-9", "=6.1.*"], ["6.1.0-13-cloud", ">=6.1.0-14"]),
        ("libc", [">=musl-1.2", "!=2.31", "!=musl-1.1"], [">=2.31", "<2.31", ">=1.2", "musl-1.2"]),
        ("driver", [], [">=1", "<1", "!=1", "=1", "535"]),
        ("memory_gb", [">=4.25", ">4", "=4.50", "4.5", "<=4.5", "!=4"],
         [">=4.50001", "4.50", "<4.5", ">=1e1", ">v4.25"]),
        ("rev", ["b", "=b", "!=a"], ["!=b", "=a", ">=1"]),
        ("cuda", [">=12.1", ">=v12.9", "12.10", "=12.1"], [">=12.9", "12.1", ">v12.10"]),
        ("l4t", [">=r35", "<r36.10"], [">=35", ">=r36.3", ">=4.2"]),
        ("name", ["!=desk-8", "desk-7"], ["!=desk-7", "desk-8"]),
        ("server", ["!=other", "=board", "board"], ["!=board", "other"]),
        ("key", ["!=gpu", "rpi4"], ["!=rpi4"]),
        ("loads", [".onnx", "=.onnx", "==.onnx"], ["=.so"]),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)  # fmt: skip
def test_a_board_fits_what_a_request_compares(label, fitting, others):
    assert [wanted for wanted in (*fitting, *others) if wants_of("", {label: wanted}).fit(BOARD)] == fitting


def test_comparisons_need_no_exact_value_beside_them():
    wants = wants_of("", {"onnxruntime": ">=1.22"})
    assert wants.exact == {ANY}
    assert wants.labels == {"onnxruntime": ">=1.22"}
    assert not wants.fit(facts_of_key("rpi4"))
    assert not wants.bare


def test_versions_are_no_pairs_and_so_cost_no_index():
    assert not {label for label, _ in BOARD.pairs} & set(VERSIONS)


VALUES = st.one_of(st.text(max_size=80), st.text(alphabet="0123456789.-abrcpostv+", max_size=20))


@given(st.sampled_from(["rev", "python"]), VALUES, VALUES)
@example("python", "1.9", "1.22")
@example("rev", "1.9", "1.22")
@example("rev", "nan", "inf")
@example("rev", "1e999", "-1")
def test_any_two_values_compare_and_one_is_lower_equal_or_higher(label, text, other):
    facts = facts_of("rpi4", "board", {label: text}, ())
    holds = {}
    for sign in ("<", "<=", "=", "!=", ">=", ">"):
        with contextlib.suppress(ValueError):
            wants = wants_of("rpi4", {label: sign + other})
            holds[sign] = wants.fit(facts)
            assert wants_of("rpi4", wants.labels) == wants
    if {"=", "!="} <= holds.keys():
        assert holds["="] != holds["!="]
    if len(holds) == 6:
        ordered = value_of(label, text).order(value_of(label, other.strip())) is not None
        assert holds["<"] + holds["="] + holds[">"] == 1 if ordered else not holds["<"] | holds[">"]
        assert not ordered or (holds["<="], holds[">="]) == (not holds[">"], not holds["<"])


SIGNS = st.sampled_from(OPERATORS)
WANTED = st.one_of(VALUES, st.builds("{}{}".format, SIGNS, VALUES), st.builds("{}{},{}".format, SIGNS, VALUES, VALUES))


@given(st.dictionaries(st.sampled_from(["rev", "tvm", ""]), WANTED))
def test_any_labels_are_wants_or_refused(labels):
    with contextlib.suppress(ValueError):
        wants = wants_of("rpi4", labels)
        assert wants_of("rpi4", wants.labels) == wants
        assert hash(wants_of("rpi4", wants.labels)) == hash(wants)
        wants.fit(BOARD)
