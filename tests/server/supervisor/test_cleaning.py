"""Directories of sessions, made and removed in a thread."""

import fcntl
import os
import sys
import time

import pytest

from rpcsys.server.sandbox import work_folders
from rpcsys.server.sandbox.session_user import SessionUsers
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.cleaning import Cleaner
from rpcsys.server.supervisor.loop import Loop
from tests.live.daemons import wait_until

AHEAD = 3


class CleanerHarness:
    def __init__(self, tmp_path, users=None):
        self.users = users
        self.loop = Loop()
        self.folder = work_folders.make_folder(str(tmp_path))
        self.events = self.loop.events
        self.cleaner = Cleaner(self.loop, self.folder, AHEAD, users)

    def finish(self, session, sweep=""):
        self.cleaner.start(session, sweep)
        while not any(event.session == session for event in self.events):
            self.loop.run_once(1.0)

    def use(self, session):
        """Have a session write into its directory, and end."""
        with open(os.path.join(self.cleaner.make_folder(session), "file"), "w"):
            pass
        self.finish(session)

    def ready(self):
        return sorted(name for name in os.listdir(self.folder) if name.startswith("ready-"))


@pytest.fixture
def harness(tmp_path):
    return CleanerHarness(tmp_path)


def test_directories_for_the_next_sessions_are_made_when_one_has_ended(harness):
    assert harness.ready() == []
    harness.use(1)
    assert [type(event) for event in harness.events] == [ev.Removed]
    wait_until(lambda: len(harness.cleaner._ready) == AHEAD, 15, "directories are made ahead")
    assert len(harness.ready()) == AHEAD
    folders = [harness.cleaner.make_folder(session) for session in range(2, 4 + AHEAD)]
    assert len(set(folders)) == AHEAD + 2
    assert all(os.listdir(folder) == [] and os.path.isdir(work_folders.temporary(folder)) for folder in folders)
    assert harness.ready() == []


def test_a_removed_directory_is_made_again(harness):
    harness.use(1)
    wait_until(lambda: len(harness.cleaner._ready) == AHEAD, 15, "directories are made ahead")
    assert len(harness.ready()) == AHEAD
    for name in harness.ready():
        for _ in work_folders.removal(os.path.join(harness.folder, name)):
            pass
    assert os.path.isdir(harness.cleaner.make_folder(2))


def test_with_shared_folders_no_directory_is_made_ahead(harness):
    for session in (1, 2):
        harness.cleaner.make_folder(session)
        harness.finish(session, sweep="busy")
    assert os.listdir(harness.folder) == []


def test_a_directory_that_a_session_has_not_changed_is_the_next_ones(harness):
    files = harness.cleaner.make_folder(1)
    inode = os.stat(files).st_ino
    harness.finish(1)
    assert harness.cleaner._thread is None
    assert os.listdir(harness.folder) == harness.ready() == ["ready-1"]
    again = harness.cleaner.make_folder(2)
    assert os.stat(again).st_ino == inode
    assert os.listdir(again) == os.listdir(work_folders.temporary(again)) == []


def emptied(harness, change):
    """The state of a session's directory before it was emptied and changed by ``change``, and that of the next one."""
    files = harness.cleaner.make_folder(1)
    before = work_folders.state(files)
    wait_until(lambda: time.time_ns() > before[1][-1] + 100_000_000, 15, "the clock's next tick", 0.05)
    os.mkdir(place := os.path.join(files, "place"))
    os.rmdir(place)
    change(files)
    harness.finish(1)
    assert harness.cleaner._thread is None
    assert harness.ready() == ["ready-1"]
    now = work_folders.state(harness.cleaner.make_folder(2))
    assert [one[0] for one in (now[0], now[2])] == [one[0] for one in (before[0], before[2])]
    assert now[1][-1] > before[1][-1]
    return before, now


def test_a_directory_that_a_session_has_emptied_again_is_the_next_ones(harness):
    before, now = emptied(harness, lambda files: None)
    assert [one[:-1] for one in now] == [one[:-1] for one in before]


def flag(files):
    """Set a flag of the file system, as chattr does: FS_NOATIME_FL."""
    descriptor = os.open(files, os.O_RDONLY)
    try:
        flags = int.from_bytes(fcntl.ioctl(descriptor, 0x80086601, bytes(8)), sys.byteorder)
        fcntl.ioctl(descriptor, 0x40086602, (flags | 0x80).to_bytes(8, sys.byteorder))
    finally:
        os.close(descriptor)


def grow(files):
    """Leave a directory that has grown, where file systems do not shrink it."""
    names = [os.path.join(files, f"{number:0200d}") for number in range(100)]
    for name in names:
        os.mkdir(name)
    for name in names:
        os.rmdir(name)
    if os.stat(files).st_size == os.stat(work_folders.temporary(files)).st_size:
        pytest.skip("directories shrink here")


changes = pytest.mark.parametrize(
    "change", [lambda files: os.chmod(files, 0o777), lambda files: os.setxattr(files, "user.left", b"1"), flag, grow],
    ids=["rights", "attribute", "flag", "size"],
)  # fmt: skip


@changes
def test_an_emptied_directory_with_something_left_on_it_is_made_anew_in_its_place(harness, change):
    def with_support(files):
        try:
            change(files)
        except OSError as error:
            pytest.skip(f"this file system does not have it: {error}")

    before, now = emptied(harness, with_support)
    files = os.path.join(harness.folder, "session-2", "files")
    assert now[1][1] & 0o777 == 0o700
    assert not os.listxattr(files)
    assert work_folders._alike(files, work_folders.temporary(files))
    assert now[1][-1] > before[1][-1]


def test_directories_whose_flags_a_system_does_not_tell_are_not_alike(harness, monkeypatch):
    files = harness.cleaner.make_folder(1)
    assert work_folders._alike(files, work_folders.temporary(files))
    monkeypatch.setattr(work_folders, "_READ_FLAGS", ((0x5401, 64),))  # a terminal's
    assert not work_folders._alike(files, work_folders.temporary(files))


def test_any_change_of_a_directory_removes_it(harness):
    def unpacked(files):
        os.mkdir(os.path.join(os.path.dirname(files), "beside"))

    def made_and_removed(files):
        place = os.path.join(work_folders.temporary(files), "x")
        os.mkdir(place)
        os.rmdir(place)
        os.utime(work_folders.temporary(files), ns=(0, 0))

    changes = [unpacked, made_and_removed, lambda files: os.chmod(files, 0o755), os.rmdir]
    for session, change in enumerate(changes, 1):
        files = harness.cleaner.make_folder(session)
        passed = os.stat(work_folders.temporary(files)).st_ctime_ns
        wait_until(lambda passed=passed: time.time_ns() > passed + 100_000_000, 15, "the clock's next tick", 0.05)
        change(files)
        harness.finish(session)
        assert not os.path.exists(work_folders.home(harness.folder, session))
        wait_until(lambda: len(harness.cleaner._ready) == AHEAD, 15, "directories are made ahead")
        for name in harness.ready():
            assert work_folders.state(os.path.join(harness.folder, name, "files"))[1][1] & 0o777 == 0o700
            assert sorted(os.listdir(os.path.join(harness.folder, name))) == ["files", "tmp"]


def test_a_directory_that_is_empty_again_is_removed_at_once(harness):
    files = harness.cleaner.make_folder(1)
    os.mkdir(place := os.path.join(files, "place"))
    os.rmdir(place)
    os.chmod(os.path.dirname(files), 0o777)
    harness.finish(1)
    assert harness.cleaner._thread is None
    assert len(harness.ready()) == AHEAD
    assert os.stat(os.path.dirname(harness.cleaner.make_folder(2))).st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_directories_belong_to_the_users_of_their_sessions(tmp_path):
    harness = CleanerHarness(tmp_path, SessionUsers("auto"))
    for session, slot in ((1, 0), (2, 1), (3, 0)):
        user = harness.users.of_slot(slot)
        files = harness.cleaner.make_folder(session, user)
        assert {one[2] for one in work_folders.state(files)} == {user.uid}
        harness.finish(session)
        assert len(harness.ready()) == 1  # it goes from one to the next
