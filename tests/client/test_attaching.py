"""The files of holds: what is read from them, and the one line for those that are over or damaged."""

from __future__ import annotations

import fcntl
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.client import attaching
from rpcsys.errors import SessionLost, UsageError

LEASE = {
    "key": "rpi4",
    "host": "10.0.0.7",
    "port": 9090,
    "matchkey": "rpi4:5c",
    "server": "desk-7",
    "labels": {"a": "1"},
}
ABOUT = {"tracker": "127.0.0.1:9190", "lease": LEASE, "pid": 7, "since": 5.0, "until": None}


def test_a_held_file_is_known_by_its_lock(tmp_path):
    path = tmp_path / "hold"
    path.write_text(json.dumps(ABOUT))
    with path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        found = attaching.read(str(path))
        assert (found.over, found.server, found.lease["port"]) == ("", "desk-7", 9090)
    with pytest.raises(SessionLost, match=r"desk-7 is over \(its holder.* is gone\): exit its shell, or type: unset"):
        attaching.attach(str(path))


def test_a_hold_that_ended_says_why(tmp_path):
    (tmp_path / "hold").write_text(json.dumps({**ABOUT, "over": "time\nis over"}))
    with pytest.raises(SessionLost, match="is over") as told:
        attaching.attach(str(tmp_path / "hold"))
    assert "\n" not in str(told.value)


@given(st.binary(max_size=200) | st.builds(lambda text: json.dumps(text).encode(), st.recursive(
    st.none() | st.integers() | st.text() | st.floats(), lambda inner: st.dictionaries(
        st.sampled_from([*ABOUT, *LEASE, "x"]), inner) | st.lists(inner), max_leaves=12)))  # fmt: skip
def test_any_other_file_is_refused(tmp_path_factory, blob):
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(blob)
    with pytest.raises(UsageError, match="is no file of a hold: exit its shell, or type: unset RPCSYS_LEASE"):
        attaching.read(str(path))


@pytest.mark.parametrize("field", ["key", "host", "port", "matchkey"])
def test_a_lease_without_a_field_is_refused(tmp_path, field):
    lease = {name: value for name, value in LEASE.items() if name != field}
    (tmp_path / "hold").write_text(json.dumps({**ABOUT, "lease": lease}))
    with pytest.raises(UsageError, match="is no file of a hold"):
        attaching.read(str(tmp_path / "hold"))


@pytest.mark.parametrize(
    ("key", "labels", "fits"),
    [
        (None, {}, True),
        ("rpi4", {}, True),
        ("rpi5", {}, False),
        ("rpi4", {"server": "desk-7"}, True),
        ("rpi4", {"server": "desk-8"}, False),
        (None, {"a": "1"}, True),
        (None, {"a": "1", "b": "2"}, False),
    ],
)
def test_which_request_means_the_hold(key, labels, fits):
    assert attaching.HoldFile("path", **ABOUT).fits(key, labels) is fits


def test_a_lost_session_is_explained_by_the_end_of_its_hold(tmp_path, monkeypatch):
    path, lost = tmp_path / "hold", SessionLost("the connection was closed")
    path.write_text(json.dumps({**ABOUT, "over": "the night run needs it"}))
    assert "the night run needs it" in str(attaching.explained(str(path), lost))
    monkeypatch.setattr(attaching, "_EXPLAINED_S", 0.02)
    with path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        path.write_text(json.dumps(ABOUT))
        assert attaching.explained(str(path), lost) is lost
    path.unlink()
    assert "was released" in str(attaching.explained(str(path), lost))


def test_which_lease_is_that_of_the_hold(tmp_path, monkeypatch):
    (tmp_path / "hold").write_text(json.dumps(ABOUT))
    monkeypatch.setenv(attaching.VARIABLE, str(tmp_path / "hold"))
    assert attaching.holds(LEASE)
    assert not attaching.holds({**LEASE, "matchkey": "rpi4:5d"})
    monkeypatch.setenv(attaching.VARIABLE, str(tmp_path / "released"))
    assert not attaching.holds(LEASE)


def test_requests_without_a_hold_are_leases(monkeypatch):
    monkeypatch.delenv(attaching.VARIABLE, raising=False)
    assert attaching.to_hold(None, {}, None) is None
    monkeypatch.setenv(attaching.VARIABLE, "/nowhere/at-all")
    for attach in (lambda: attaching.to_hold(None, {}, None), lambda: attaching.attach("/nowhere/at-all")):
        with pytest.raises(SessionLost, match="is over, or was released"):
            attach()
