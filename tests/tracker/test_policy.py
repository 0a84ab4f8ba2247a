"""policy.toml: what it says, and how its mistakes are told."""

from __future__ import annotations

import contextlib
import math
import os
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ConfigError
from rpcsys.tracker import policy
from rpcsys.tracker.access import Access, Oidc, Right, Rule

WHOLE = """\
[groups]
compiler = ["ann", "ci-*"]
keepers = ["mo"]
everybody = ["compiler", "keepers", "guest"]

[[allow]]
who      = ["compiler"]
keys     = ["rpi4", "jetson-*"]
priority = 2                      # highest that may be asked for
session  = "2h"
at_once  = 4

[[allow]]
who    = ["guest"]
keys   = ["rpi4"]
code   = false

[[allow]]
who     = ["keepers"]
rights  = ["drain", "end", "enrol", "deploy", "audit"]
modules = ["*"]

[tvm]
from = ["10.1.0.0/16", "10.2.0.7"]

[page]
open = ["127.0.0.0/8"]

[oidc]
issuer       = "https://id.example/realms/lab"
client_id    = "rpcsys"
groups_claim = "groups"
lasts        = "8h"
"""


def test_a_whole_file() -> None:
    rights = frozenset(map(Right, ("drain", "end", "enrol", "deploy", "audit")))
    groups = {
        "compiler": frozenset({"ann", "ci-*"}),
        "keepers": frozenset({"mo"}),
        "everybody": frozenset({"ann", "ci-*", "mo", "guest"}),
    }
    rules = (
        Rule(("compiler",), ("rpi4", "jetson-*"), 2, 7200.0, 4),
        Rule(("guest",), ("rpi4",), code=False),
        Rule(("keepers",), rights=rights, modules=("*",)),
    )
    networks = (ip_network("10.1.0.0/16"), ip_network("10.2.0.7/32"))
    oidc = Oidc("https://id.example/realms/lab", "rpcsys", "email", "groups", 8 * 3600.0)
    expected = Access("basement", groups, rules, networks, (ip_network("127.0.0.0/8"),), oidc)
    assert policy.parse(WHOLE, "basement", {"ann": (), "mo": ()}) == expected


def test_an_empty_file_allows_nothing() -> None:
    assert policy.parse("", "basement") == Access("basement")


def test_members_are_in_the_groups_that_they_were_invited_into() -> None:
    text = '[groups]\nall = ["desk", "mo"]\n[[allow]]\nwho = ["all"]\nkeys = ["rpi4"]\n'
    access = policy.parse(text, "basement", {"ann": ("desk", "night"), "bo": (), "mo": ("desk",)})
    assert access.groups == {"all": {"ann", "mo"}, "desk": {"ann", "mo"}, "night": {"ann"}}
    assert access.grant("ann", "rpi4") is not None
    assert access.grant("bo", "rpi4") is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("30min", 1800.0), ("2h", 7200.0), ("1.5 d", 129600.0), ("0.5s", 0.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert policy.parse(f'[[allow]]\nwho = ["a"]\nsession = "{text}"', "x").rules[0].session_s == seconds
    assert policy.parse('[[allow]]\nwho = ["a"]', "x").rules[0].session_s == math.inf


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("priority = 2 ", "priorty = 2 ", 9, "priorty must be one of who, keys, priority"),
        ("priority = 2 ", "priority = 0 ", 9, "priority must be a whole number from 1 to 1000"),
        ("priority = 2 ", "priority = true ", 9, "priority must be a whole number"),
        ('"2h"', '"2 hours"', 10, 'session must be a duration such as "90s"'),
        ('"2h"', "7200", 10, "session must be a duration"),
        ('"2h"', '"0s"', 10, "session must be a duration"),
        ("at_once  = 4", "at_once  = 1.5", 11, "at_once must be a whole number"),
        ("code   = false", 'code   = "no"', 16, "code must be true or false"),
        ('["guest"]\nkeys', '"guest"\nkeys', 14, "who must be a list of texts"),
        ('["guest"]\nkeys', "[]\nkeys", 14, r'who must be a list of members and groups, such as \["ann"'),
        ('["guest"]\nkeys', '["gu est"]\nkeys', 14, "without 'gu est'"),
        ('who    = ["guest"]\n', "", 13, "who must be a list of members and groups"),
        ('"audit"', '"root"', 20, "rights must be among see, drain, .*, not 'root'"),
        ("10.1.0.0/16", "10.1.0.7/16", 24, "from must be addresses and networks such as .*, not '10.1.0.7/16'"),
        ("10.1.0.0/16", "lab-host", 24, "from must be addresses and networks"),
        ('open = ["127', 'opened = ["127', 27, "opened must be one of open"),
        ("[page]", "[pages]", 26, "pages must be one of groups, allow"),
        ("https://id", "http://id", 30, 'issuer must be a URL such as "https://id.example/realms/lab"'),
        ("realms/lab", "realms/lab/", 30, "issuer must be a URL"),
        ("realms/lab", "?realm=lab", 30, "issuer must be a URL"),
        ("id.example", "ann:pw@id.example", 30, "issuer must be a URL"),
        ('"rpcsys"', '""', 31, "client_id must be a text"),
        ('"rpcsys"', "7", 31, "client_id must be a text"),
        ("client_id", "client", 31, "client must be one of issuer, client_id, name_claim"),
        ('"8h"', '"8 hours"', 33, 'lasts must be a duration such as "90s"'),
        ('keepers = ["mo"]', "keepers = []", 3, "keepers must be a list of members: nobody is in it"),
        ('keepers = ["mo"]', 'keepers = ["everybody"]', 3, r"no part of itself \(keepers > everybody > keepers"),
        ('keepers = ["mo"]', 'bo = ["mo"]', 3, "bo must be no member's name, too: rename the group"),
        ('keepers = ["mo"]', '"a b" = ["mo"]', 3, "a b must be a name of letters"),
        ('keepers = ["mo"]', "keepers = 7", 3, "keepers must be a list of texts"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(old: str, new: str, line: int, words: str) -> None:
    assert WHOLE.count(old) == 1
    text = WHOLE.replace(old, new)
    with pytest.raises(ConfigError, match=rf"^policy\.toml, line {line}: .*{words}") as caught:
        policy.parse(text, "basement", {"ann": (), "bo": ()})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[allow]\n", "is no TOML: .*line 1"),
        ('[groups]\na = ["b"]\na = ["c"]\n', "is no TOML: .*line 3"),
        ("allow = 7", r"line 1: allow must be tables: write \[\[allow\]\]"),
        ("[allow]\nwho = ['a']", r"line 1: allow must be tables"),
        ("groups = 7", r"line 1: groups must be a table: write \[groups\]"),
        ("a = " + "[" * 100_000, "is no TOML"),
        ("#" * 10_000_000, "has more than 1,048,576 characters: use groups"),
    ],
    ids=range(7),
)
def test_what_is_no_policy_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        policy.parse(text, "basement")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    with pytest.raises(ConfigError, match=r"cannot read .*policy\.toml: No such file or directory; restore"):
        policy.load(path, "basement")
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"policy\.toml is no file: put the lab's rules there"):
        policy.load(path, "basement")


@given(st.text("[]alowh=\"'k*{}.,\n0- groupstvmpe", max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        policy.parse(text, "basement")


def test_an_issuer_needs_two_fields_and_may_be_on_this_machine() -> None:
    found = policy.parse('[oidc]\nissuer = "http://127.0.0.1:8080"\nclient_id = "c"\n', "x").oidc
    assert found == Oidc("http://127.0.0.1:8080", "c", "email", "", 12 * 3600.0)
    for text in ('[oidc]\nissuer = "https://id.example"\n', '[oidc]\nclient_id = "c"\n', "oidc = {}\n"):
        with pytest.raises(ConfigError, match="line 1: "):
            policy.parse(text, "x")
