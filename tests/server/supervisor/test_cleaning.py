"""Directories of sessions, made and removed in a thread."""

import os

import pytest

from rpcsys.server.sandbox import work_folders
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.cleaning import Cleaner
from rpcsys.server.supervisor.loop import Loop
from tests.live.daemons import wait_until

AHEAD = 3


class CleanerHarness:
    def __init__(self, tmp_path):
        self.loop = Loop()
        self.folder = work_folders.make_folder(str(tmp_path))
        self.events = self.loop.events
        self.cleaner = Cleaner(self.loop, self.folder, AHEAD)

    def finish(self, session, sweep=""):
        self.cleaner.start(session, sweep)
        while not any(event.session == session for event in self.events):
            self.loop.run_once(1.0)

    def ready(self):
        return sorted(name for name in os.listdir(self.folder) if name.startswith("ready-"))


@pytest.fixture
def harness(tmp_path):
    return CleanerHarness(tmp_path)


def test_directories_for_the_next_sessions_are_made_when_one_has_ended(harness):
    harness.cleaner.make_folder(1)
    assert harness.ready() == []
    harness.finish(1)
    assert [type(event) for event in harness.events] == [ev.Removed]
    wait_until(lambda: len(harness.cleaner._ready) == AHEAD, 15, "directories are made ahead")
    assert len(harness.ready()) == AHEAD
    folders = [harness.cleaner.make_folder(session) for session in range(2, 4 + AHEAD)]
    assert len(set(folders)) == AHEAD + 2
    assert all(os.listdir(folder) == [] and os.path.isdir(work_folders.temporary(folder)) for folder in folders)
    assert harness.ready() == []


def test_a_removed_directory_is_made_again(harness):
    harness.cleaner.make_folder(1)
    harness.finish(1)
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
