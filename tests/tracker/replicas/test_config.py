from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ConfigError
from rpcsys.tracker.replicas.config import EnginePlace, EngineTls, EngineUser, engine_user, parse_place


@pytest.mark.parametrize(
    ("text", "endpoints", "lab"),
    [
        ("etcd://lab-1:2379,lab-2:23790/lab", (("lab-1", 2379), ("lab-2", 23790)), "lab"),
        ("etcd://lab-1/a.b_C-9", (("lab-1", 2379),), "a.b_C-9"),
        ("etcd://[::1]:1,10.0.0.1/x", (("::1", 1), ("10.0.0.1", 2379)), "x"),
    ],
)
def test_a_place(text: str, endpoints: tuple[tuple[str, int], ...], lab: str) -> None:
    place = parse_place(text)
    assert place == EnginePlace(endpoints, lab)
    assert parse_place(str(place)) == place


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lab-1:2379/lab", "does not begin with etcd://"),
        ("http://lab-1:2379/lab", "does not begin with etcd://"),
        ("etcd://lab-1:2379", "the lab's name has"),
        ("etcd://lab-1:2379/", "the lab's name has"),
        ("etcd://lab-1:2379/a/b", "the lab's name has"),
        ("etcd://lab-1:2379/" + "a" * 65, "the lab's name has"),
        ("etcd://lab-1:2379/lab\n", "the lab's name has"),
        ("etcd:///lab", "'' is no HOST:PORT"),
        ("etcd://lab-1,,lab-2/lab", "'' is no HOST:PORT"),
        ("etcd://lab-1:0/lab", "'lab-1:0' is no HOST:PORT"),
        ("etcd://lab-1,lab-1:2379/lab", "occurs twice"),
        ("etcd://" + ",".join(f"lab-{n}" for n in range(10)) + "/lab", "at most 9"),
    ],
)
def test_no_place(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        parse_place(text)
    assert "as in etcd://lab-1:2379,lab-2:2379,lab-3:2379/lab" in str(raised.value)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="RPCSYS_ENGINE_USER") as raised:
        parse_place("etcd://bob:secret@lab-1/lab")
    assert "secret" not in str(raised.value)
    assert "secret" not in repr(EngineUser("bob", "secret"))


@given(st.text(max_size=40), st.booleans())
def test_any_text(text: str, prefixed: bool) -> None:
    try:
        place = parse_place("etcd://" + text if prefixed else text)
    except ConfigError:
        return
    assert parse_place(str(place)) == place


def test_a_user() -> None:
    assert engine_user({}) is None
    both = {"RPCSYS_ENGINE_USER": "rpcsys", "RPCSYS_ENGINE_PASSWORD": "secret"}
    assert engine_user(both) == EngineUser("rpcsys", "secret")
    for name in both:
        with pytest.raises(ConfigError, match=f"belong together: set {name}, too"):
            engine_user({**both, name: ""})
    with pytest.raises(ConfigError, match="at most 256 characters"):
        engine_user({**both, "RPCSYS_ENGINE_USER": "x" * 257})


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path in (str(tmp_path / "absent.pem"), str(empty)):
        with pytest.raises(ConfigError, match=r"pem cannot be used \(.*\): give PEM files in --replicate-ca"):
            EngineTls(path).context()
