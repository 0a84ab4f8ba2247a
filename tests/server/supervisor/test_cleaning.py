"""Directories made and removed beside the loop."""

import os

import pytest

from rpcsys.server.sandbox import work_folders
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.cleaning import Cleaner
from rpcsys.server.supervisor.loop import Loop
from tests.live.daemons import wait_until

AHEAD = 3


class Scene:
    def __init__(self, tmp_path):
        self.loop = Loop()
        self.folder = work_folders.make_folder(str(tmp_path))
        self.told = self.loop.events
        self.cleaner = Cleaner(self.loop, self.folder, AHEAD)

    def finish(self, session, sweep=""):
        self.cleaner.start(session, sweep)
        while not any(event.session == session for event in self.told):
            self.loop.run_once(1.0)

    def ready(self):
        return sorted(name for name in os.listdir(self.folder) if name.startswith("ready-"))


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_directories_for_the_next_sessions_are_made_when_one_has_ended(scene):
    scene.cleaner.make_folder(1)
    assert scene.ready() == []
    scene.finish(1)
    assert [type(event) for event in scene.told] == [ev.Removed]
    wait_until(lambda: len(scene.cleaner._ready) == AHEAD, 15, "directories are made ahead")
    assert len(scene.ready()) == AHEAD
    folders = [scene.cleaner.make_folder(session) for session in range(2, 4 + AHEAD)]
    assert len(set(folders)) == AHEAD + 2
    assert all(os.listdir(folder) == [] and os.path.isdir(work_folders.temporary(folder)) for folder in folders)
    assert scene.ready() == []


def test_what_was_made_ahead_may_be_gone(scene):
    scene.cleaner.make_folder(1)
    scene.finish(1)
    wait_until(lambda: len(scene.cleaner._ready) == AHEAD, 15, "directories are made ahead")
    assert len(scene.ready()) == AHEAD
    for name in scene.ready():
        for _ in work_folders.removal(os.path.join(scene.folder, name)):
            pass
    assert os.path.isdir(scene.cleaner.make_folder(2))


def test_nothing_is_made_ahead_that_another_session_could_see(scene):
    for session in (1, 2):
        scene.cleaner.make_folder(session)
        scene.finish(session, sweep="busy")
    assert os.listdir(scene.folder) == []
