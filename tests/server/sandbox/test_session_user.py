"""Users of sessions: what a process is after it has become one, and which numbers they have."""

import json
import os
import subprocess
import sys

import pytest

from rpcsys.errors import ConfigError
from rpcsys.server.sandbox import session_user
from rpcsys.server.sandbox.session_user import AUTO, BLOCK, BLOCKS, CACHE, FIRST, MODELS, SessionUsers

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

BECOME = """
import ctypes, getpass, json, os, sys
from rpcsys.server.sandbox import session_user
os.environ["XDG_RUNTIME_DIR"] = "/run/user/0"
session_user.become(session_user.User(1879048200, 1879048201, (1879048202,)), "/nowhere")
fields = dict(line.split(None, 1) for line in open("/proc/self/status") if line.startswith(("Cap", "NoNew")))
try:
    os.setuid(0)
    back = ""
except OSError as error:
    back = error.strerror
print(json.dumps({
    "ids": [*os.getresuid(), *os.getresgid(), *os.getgroups()], "name": getpass.getuser(),
    "capable": any(int(fields[name + ":"], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")),
    "sealed": int(fields["NoNewPrivs:"]), "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
    "own": os.stat("/proc/self/fd").st_uid, "back": back,
    "environ": [os.environ["HOME"], os.path.expanduser("~/x"), os.environ.get("XDG_RUNTIME_DIR")],
}))
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@root_only
def test_a_process_becomes_another_user_for_good():
    uid, gid = 1879048200, 1879048201
    assert json.loads(run(BECOME)) == {
        "ids": [uid, uid, uid, gid, gid, gid, 1879048202], "name": "rpcsys", "capable": False, "sealed": 1,
        "dumpable": 1, "own": uid, "back": "Operation not permitted",
        "environ": ["/nowhere", "/nowhere/x", None],
    }  # fmt: skip


@root_only
def test_each_slot_of_each_server_has_a_user_of_its_own():
    one, other = SessionUsers(AUTO, ()), SessionUsers(AUTO, ())
    users = [server.of_slot(slot) for server in (one, other) for slot in range(BLOCK)]
    assert len({user.uid for user in users}) == 2 * BLOCK
    assert all(user.uid == user.gid and FIRST <= user.uid < CACHE and user.groups == () for user in users)
    assert one.of_slot(1).uid == one.uids[1] == one.uids[0] + 1
    assert one.own


@root_only
def test_a_server_that_ends_gives_its_numbers_back():
    code = "from rpcsys.server.sandbox.session_user import *; print(SessionUsers(AUTO).of_slot(0).uid)"
    held = {SessionUsers(AUTO).of_slot(0).uid for _ in range(3)}
    assert len(held) == 1
    assert FIRST <= int(run(code)) < CACHE


def test_the_numbers_do_not_overlap():
    assert FIRST + BLOCK * BLOCKS == CACHE < MODELS[0] < MODELS[-1] < 2**31


@root_only
def test_groups_are_those_given_or_those_of_accelerators():
    import grp

    here = {group.gr_name: group.gr_gid for group in grp.getgrall()}
    wanted = tuple(here[name] for name in session_user.GROUPS if name in here)
    assert SessionUsers(AUTO).of_slot(0).groups == wanted
    assert SessionUsers(AUTO, cache=True).of_slot(0).groups == (*wanted, CACHE)
    assert SessionUsers(AUTO, ["daemon"]).of_slot(0).groups == (here["daemon"],)
    with pytest.raises(ConfigError, match="--session-groups no-such: there is no such group here"):
        SessionUsers(AUTO, ["no-such"])


@root_only
def test_one_user_for_all():
    users = SessionUsers("nobody", ())
    assert users.of_slot(0) == users.of_slot(1)
    assert (users.of_slot(0).uid, users.uids, users.own) == (65534, [65534], False)
    with pytest.raises(ConfigError, match="--session-user no-such: there is no such user here"):
        SessionUsers("no-such")
    with pytest.raises(ConfigError, match="--session-user root: a session of root reaches all of its server"):
        SessionUsers("root")


def test_another_user_needs_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="--session-user nobody needs root"):
        SessionUsers("nobody")


@root_only
def test_a_version_keeps_its_user_and_only_that_one_reads_its_folder(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    users = SessionUsers(AUTO)
    first, second = (users.of_model(str(folder)) for folder in folders)
    assert first.uid != second.uid
    assert first.uid in MODELS
    assert second.uid in MODELS
    assert SessionUsers(AUTO).of_model(str(folders[0])) == first
    assert [(folder.stat().st_uid, folder.stat().st_mode & 0o777) for folder in folders] == [(0, 0o750)] * 2
    assert SessionUsers("nobody").of_model(str(folders[0])).uid == 65534
    with pytest.raises(FileNotFoundError):
        users.of_model(str(tmp_path / "removed"))


@root_only
def test_what_users_cannot_reach_is_named(tmp_path):
    (tmp_path / "closed").mkdir(0o700)
    (tmp_path / "closed" / "file").touch()
    code = """
import sys
from rpcsys.server.sandbox import session_user
try:
    session_user.try_out(session_user.User(1879048200, 1879048200), sys.argv[1:])
except PermissionError as error:
    print(error.strerror)
"""
    assert run(code, "/usr", "/etc/passwd") == ""
    for path in (str(tmp_path / "closed" / "file"), str(tmp_path / "closed")):
        assert run(code, "/usr", path) == f"{path} is closed to them\n"


def test_files_of_code_are_those_of_imported_modules():
    found = session_user.files_of_code()
    assert os.__file__ in found
    assert session_user.__file__ in found
