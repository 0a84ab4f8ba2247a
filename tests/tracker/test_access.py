"""Who may do what in a lab."""

from __future__ import annotations

import math
import time
from fnmatch import fnmatchcase
from ipaddress import ip_network

import pytest

from rpcsys.tracker.access import TVM, Access, Grant, Right, Rule, is_name, lacks, refusal

GROUPS = {"compiler": frozenset({"ann", "ci-*"}), "keepers": frozenset({"mo"})}
ACCESS = Access(
    "basement",
    GROUPS,
    (
        Rule(("compiler",), keys=("rpi4", "jetson-*"), priority=2, session_s=7200.0, at_once=4),
        Rule(("ann",), keys=("jetson-3",), priority=1, session_s=86400.0, at_once=1),
        Rule(("guest-*",), keys=("rpi4",), code=False),
        Rule(("guest-bo",), keys=("rpi4",), session_s=60.0, modules=("resnet*",)),
        Rule(("*",), rights=frozenset({Right.SEE})),
        Rule(("ed",), rights=frozenset({Right.DEPLOY}), modules=("squeezenet",)),
        Rule(("keepers",), rights=frozenset({Right.KEEPER})),
        Rule((TVM,), keys=("rpi3",)),
    ),
    tvm_from=(ip_network("10.1.0.0/16"), ip_network("fd00::/8")),
    page_open=(ip_network("127.0.0.0/8"),),
)


@pytest.mark.parametrize(
    ("member", "key", "expected"),
    [
        ("ann", "rpi4", Grant(2, 7200.0, 4, True)),
        ("ci-7", "jetson-1", Grant(2, 7200.0, 4, True)),
        ("ann", "jetson-3", Grant(2, 86400.0, 4, True)),  # the most of two rules
        ("guest-al", "rpi4", Grant(1, math.inf, math.inf, False)),
        ("guest-bo", "rpi4", Grant(1, math.inf, math.inf, True)),
        ("ann", "rpi3", None),
        ("bo", "rpi4", None),
        ("ci", "rpi4", None),
        ("Ann", "rpi4", None),
        ("compiler", "rpi4", None),  # a group is no member
        (TVM, "rpi3", Grant(1, math.inf, math.inf, True)),
        (TVM, "rpi4", None),
        ("ed", "rpi4", None),
        ("mo", "anything", Grant(1000, math.inf, math.inf, True)),
    ],
)
def test_rules_add_up(member: str, key: str, expected: Grant | None) -> None:
    assert ACCESS.grant(member, key) == expected
    assert (refusal(ACCESS, member, key) == "") == (expected is not None)


def test_rights_add_up_and_a_keeper_has_all() -> None:
    assert ACCESS.rights("ann") == {Right.SEE}
    assert ACCESS.rights("ed") == {Right.SEE, Right.DEPLOY}
    assert ACCESS.rights("mo") == frozenset(Right)
    assert ACCESS.rights(TVM) == frozenset()  # "*" is every member, and TVM's clients are none
    assert ACCESS.keepers(["mo", "ann", "ed"]) == ["mo"]


@pytest.mark.parametrize("right", list(Right))
def test_each_right_is_lacked_in_a_sentence(right: Right) -> None:
    assert lacks(ACCESS, "mo", right) == ""
    text = lacks(ACCESS, TVM, right)
    assert f"the right {right.value!r}" in text
    assert text.endswith("in the rules of lab basement); ask mo")


@pytest.mark.parametrize(
    ("member", "module", "calls", "replaces"),
    [
        ("guest-bo", "resnet50", True, False),
        ("guest-bo", "squeezenet", False, False),
        ("ed", "squeezenet", True, True),
        ("ed", "resnet50", False, False),
        ("mo", "resnet50", True, True),
        ("ann", "resnet50", False, False),
    ],
)
def test_modules_are_called_and_replaced_by_name(member: str, module: str, calls: bool, replaces: bool) -> None:
    assert ACCESS.may_call(member, module) is calls
    assert any(fnmatchcase(module, pattern) for pattern in ACCESS.deployable(member)) is replaces


def test_a_refusal_says_what_the_rules_allow() -> None:
    assert refusal(ACCESS, "ann", "rpi3") == (
        "ann may not lease rpi3 (rules of lab basement allow: rpi4, jetson-*, jetson-3); ask mo"
    )
    assert refusal(ACCESS, "bo", "rpi4") == "bo may not lease rpi4 (rules of lab basement allow: nothing); ask mo"
    assert refusal(ACCESS, "ann", "rpi4", priority=5) == "ann may not lease rpi4 with priority 5: 2 at most; ask mo"
    for held, count in ((4, 1), (2, 3)):
        assert refusal(ACCESS, "ann", "rpi4", held=held, count=count) == (
            f"ann may not lease rpi4: 4 leases at once, and has {held}; end one, or ask mo"
        )
    assert refusal(ACCESS, "ann", "rpi4", priority=2, held=3) == ""


def test_without_rules_nothing_is_allowed() -> None:
    nobody = Access()
    assert nobody.grant("ann", "rpi4") is None
    assert nobody.rights("ann") == frozenset()
    assert not nobody.admits_tvm("127.0.0.1")
    assert not nobody.shows_page("127.0.0.1")
    assert refusal(nobody, "ann", "rpi4").endswith("; ask a keeper")


def test_some_keepers_are_named() -> None:
    names = ("zed", "ann", "k-*", "bo", "mo")
    many = Access(rules=(Rule(names, rights=frozenset({Right.KEEPER})),))
    assert many.ask == "ask ann or bo or mo"


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("fd00::7", True), ("fd00::7%eth0", True),
        ("10.2.0.1", False), ("::1", False), ("", False), ("lab-host", False), ("10.1.2.3.4", False),
    ],
)  # fmt: skip
def test_networks_of_tvms_clients(host: str, inside: bool) -> None:
    assert ACCESS.admits_tvm(host) is inside
    assert not ACCESS.shows_page(host)


@pytest.mark.parametrize("name", ["ann", "ci-7", "ann@example.org", "a" * 64, "7"])
def test_what_may_be_a_members_name(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "*", "a*", "a b", "-a", "a" * 65, "a\n", "größe", TVM, None, 7])
def test_what_may_not(name: object) -> None:
    assert not is_name(name)


def test_ten_thousand_rules_and_members_are_checked_quickly() -> None:
    """At most 5 us each, with room for a busy machine: a check that reads all rules takes a millisecond."""
    access = Access("large", {}, tuple(Rule((f"m{i}",), keys=(f"key-{i % 100}",)) for i in range(10_000)))
    members = [f"m{i}" for i in range(10_000)]
    assert all(refusal(access, member, f"key-{i % 100}") == "" for i, member in enumerate(members))
    start = time.perf_counter()
    for _ in range(10):
        for i, member in enumerate(members):
            refusal(access, member, f"key-{i % 100}")
    assert time.perf_counter() - start < 5.0
