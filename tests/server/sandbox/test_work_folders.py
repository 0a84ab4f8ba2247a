"""Directories of sessions: made empty, and removed in steps with any content."""

import os

import pytest

from rpcsys.server.sandbox import work_folders


def remove(path):
    return sum(1 for _ in work_folders.removal(path))


def test_each_session_has_its_own_directory(tmp_path):
    folder = work_folders.make_folder(str(tmp_path))
    first, second = work_folders.make(folder, 1), work_folders.make(folder, 2)
    assert os.listdir(first) == os.listdir(second) == []
    assert os.path.isdir(work_folders.temporary(first))
    assert os.stat(folder).st_mode & 0o777 == 0o700
    remove(work_folders.home(folder, 1))
    assert os.listdir(folder) == ["session-2"]
    remove(folder)
    assert os.listdir(tmp_path) == []


def test_a_directory_is_made_even_if_the_folder_is_gone(tmp_path):
    assert os.path.isdir(work_folders.make(str(tmp_path / "gone"), 3))


def test_a_directory_made_ahead_is_like_any_other(tmp_path):
    folder = work_folders.make_folder(str(tmp_path))
    files = work_folders.take(work_folders.make_ahead(folder, 1), folder, 7)
    assert files == os.path.join(work_folders.home(folder, 7), "files")
    assert os.listdir(folder) == ["session-7"]
    assert sorted(os.listdir(work_folders.home(folder, 7))) == ["files", "tmp"]
    assert os.path.isdir(work_folders.temporary(files))


def test_many_files_take_many_steps(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    for number in range(work_folders.STEP * 3):
        (root / str(number)).touch()
    assert remove(str(root)) == 3
    assert not root.exists()


def test_links_are_removed_and_not_followed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "link").symlink_to(tmp_path / "kept")
    (root / "dangling").symlink_to("nowhere")
    remove(str(root))
    assert os.listdir(tmp_path) == ["kept"]
    assert (tmp_path / "kept" / "file").exists()


def test_folders_without_rights_and_special_files_are_removed(tmp_path):
    root = tmp_path / "root"
    (root / "closed" / "inner").mkdir(parents=True)
    os.mkfifo(root / "closed" / "fifo")
    (root / "closed").chmod(0)
    remove(str(root))
    assert not root.exists()


def test_folders_deeper_than_the_longest_path_are_removed(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    remove(str(root))
    assert not root.exists()


def test_removing_a_missing_folder_does_nothing(tmp_path):
    assert remove(str(tmp_path / "nothing")) == 0


def test_a_locked_folder_is_not_abandoned(tmp_path):
    folder = work_folders.make_folder(str(tmp_path))
    assert work_folders.abandoned(folder) == {}
    os.mkdir(tmp_path / "rpcsys-server-1-0123abcd")
    os.mkdir(tmp_path / "rpcsys-server-else")
    (tmp_path / "rpcsys-server-2-0123abcd").symlink_to(tmp_path)
    found = work_folders.abandoned(folder)
    assert list(found) == [str(tmp_path / "rpcsys-server-1-0123abcd")]
    assert work_folders.abandoned(folder) == {}, "it is another's by now"
    for descriptor in found.values():
        os.close(descriptor)


def test_a_removed_folder_cannot_be_locked(tmp_path):
    folder = work_folders.make_folder(str(tmp_path))
    remove(folder)
    assert work_folders.hold(folder) == -1
    work_folders.make(folder, 1)
    assert work_folders.abandoned(folder) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_directory_is_given_to_a_user_and_closed_before_its_removal(tmp_path):
    folder = work_folders.make_folder(str(tmp_path))
    files = work_folders.make(folder, 1)
    work_folders.give(files, 1879048200, 1879048201)
    places = (os.path.dirname(files), files, work_folders.temporary(files))
    assert [(os.stat(place).st_uid, os.stat(place).st_gid) for place in places] == [(1879048200, 1879048201)] * 3
    os.mkdir(os.path.join(files, "open"), 0o777)
    for number in range(work_folders.STEP):
        open(os.path.join(files, "open", str(number)), "w").close()
    os.chmod(places[0], 0o777)
    steps = work_folders.removal(places[0])
    next(steps)
    left = [places[0], *(entry.path for entry in os.scandir(places[0]) if entry.is_dir())]
    assert [(os.stat(place).st_uid, os.stat(place).st_mode & 0o777) for place in left[:2]] == [(0, 0o700)] * 2
    assert list(steps) == []
    assert not os.path.exists(places[0])
