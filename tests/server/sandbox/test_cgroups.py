"""Cgroups, in trees of files that behave like the kernel's; tests/live/test_contained.py uses real ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.server.sandbox import cgroups, work_folders

V1 = (
    "31 23 0:28 / /cg rw - tmpfs tmpfs rw\n"
    "35 31 0:32 {0} /cg/memory rw - cgroup cgroup rw,memory\n"
    "34 31 0:31 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n"
)
V2 = "31 23 0:28 / /cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
FILES = {
    1: ("cgroup.procs", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control",
        "memory.failcnt", "cpuset.cpus", "cpuset.mems"),
    2: ("cgroup.procs", "cgroup.controllers", "cgroup.subtree_control", "cgroup.kill", "memory.max",
        "memory.swap.max", "memory.events", "cpuset.cpus"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "found"),
    [
        ("4:memory:/a\n3:cpuset:/\n0::/\n", V1.format("/"), {"memory": "/cg/memory/a", "cpuset": "/cg/cpuset"}),
        ("4:memory:/a/b\n", V1.format("/a"), {"memory": "/cg/memory/b"}),
        ("4:memory:/ab\n", V1.format("/a"), {}),
        ("4:memory:/../x\n", V1.format("/"), {"memory": "/cg/memory/x"}),
        ("0::/system.slice/one.service\n", V2, {"v2": "/cg/system.slice/one.service"}),
        ("0::/../outside\n", V2.replace(" / ", " /inside "), {}),
        ("0::/\n", "", {}),
    ],
)  # fmt: skip
def test_a_process_finds_its_cgroups(cgroup, mountinfo, found):
    assert cgroups.own(cgroup, mountinfo) == found


@given(st.text(), st.text())
def test_any_text_is_parsed_without_an_error(cgroup, mountinfo):
    cgroups.own(cgroup, mountinfo)


@given(st.lists(st.sampled_from([" ", "\n", ":", ",", "0", "/", "-", "cgroup", "cgroup2", "memory", ".."])))
def test_similar_text_is_parsed_without_an_error(parts):
    cgroups.own("".join(parts), " ".join(parts))


class Kernel:
    """Simulates mkdir, rmdir and writing below ``root``."""

    def __init__(self, root: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.version = root, version
        self.refused: set[str] = set()
        self.busy: set[str] = set()
        self._mkdir, self._rmdir = os.mkdir, os.rmdir
        monkeypatch.setattr(os, "mkdir", self.mkdir)
        monkeypatch.setattr(os, "rmdir", self.rmdir)
        monkeypatch.setattr(cgroups, "_write", self.write)

    def mkdir(self, path: str | Path, mode: int = 0o777) -> None:
        self._mkdir(path, mode)
        for name in FILES[self.version]:
            Path(path, name).write_text("memory cpuset" if name == "cgroup.controllers" else "")

    def rmdir(self, path: str | Path) -> None:
        if any(Path(path, "cgroup.procs").read_text().split()) or os.path.basename(path) in self.busy:
            raise OSError(errno.EBUSY, "busy")
        if any(entry.is_dir() for entry in os.scandir(path)):
            raise OSError(errno.ENOTEMPTY, "not empty")
        for entry in list(os.scandir(path)):
            os.unlink(entry.path)
        self._rmdir(path)

    def write(self, folder: str, name: str, text: str) -> None:
        if name in self.refused:
            raise PermissionError(errno.EACCES, "refused")
        file = Path(folder, name)
        if name == "cgroup.procs":
            pid = text if text != "0" else str(os.getpid())
            for other in self.root.rglob("cgroup.procs"):
                other.write_text(" ".join(p for p in other.read_text().split() if p != pid))
            text = f"{file.read_text()} {pid}"
        elif name == "cgroup.subtree_control":
            if Path(folder, "cgroup.procs").read_text().split():
                raise OSError(errno.EBUSY, "processes are inside")
            words = set(file.read_text().split())
            for word in text.split():
                (words.add if word[0] == "+" else words.discard)(word[1:])
            text = " ".join(sorted(words))
        elif not file.exists():
            raise FileNotFoundError(errno.ENOENT, name)
        file.write_text(text)


@pytest.fixture(params=[1, 2])
def kernel(request, tmp_path, monkeypatch):
    return Kernel(tmp_path, request.param, monkeypatch)


@pytest.fixture
def folders(kernel, tmp_path):
    """A server's folders."""
    names = ["memory", "cpuset"] if kernel.version == 1 else ["both"]
    for name in names:
        os.mkdir(tmp_path / name)
        if kernel.version == 1:
            (tmp_path / name / "cpuset.cpus").write_text("0-3\n")
            (tmp_path / name / "cpuset.mems").write_text("0\n")
    made = {name: str(tmp_path / name) for name in names}
    return made if kernel.version == 1 else dict.fromkeys(("memory", "cpuset"), made["both"])


def test_a_sessions_cgroup_has_its_limits(kernel, folders):
    cgroups.make(folders, 7, 200 << 20)
    cgroups.enter(folders, 7, 1234)
    cgroups.keep_on(folders, 7, {3, 1})
    memory, cpuset = Path(folders["memory"], "7"), Path(folders["cpuset"], "7")
    limit = str((200 << 20) * 9 // 8 + (32 << 20))
    assert memory.joinpath("cgroup.procs").read_text().split() == ["1234"]
    assert cpuset.joinpath("cpuset.cpus").read_text() == "1,3"
    if kernel.version == 1:
        assert cpuset.joinpath("cpuset.mems").read_text() == "0"
        limits = [memory.joinpath(n).read_text() for n in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")]
        assert limits == [limit, limit]
    else:
        limits = [memory.joinpath(name).read_text() for name in ("memory.max", "memory.swap.max")]
        assert limits == [limit, "0"]
        cgroups.kill(folders, 7)
        assert memory.joinpath("cgroup.kill").read_text() == "1"


@pytest.mark.parametrize(
    ("text", "killed", "starved"),
    [
        ("oom 1\noom_kill 1\n", False, True),
        ("under_oom 0\noom_kill 0\n", True, False),
        ("under_oom 0\n", True, True),
        ("under_oom 0\n", False, False),
        ("nonsense\n", True, False),
    ],
)
def test_a_process_killed_for_memory_is_detected(kernel, folders, text, killed, starved):
    cgroups.make(folders, 7, 1 << 20)
    name = "memory.events" if kernel.version == 2 else "memory.oom_control"
    Path(folders["memory"], "7", name).write_text(text)
    Path(folders["memory"], "7", "memory.failcnt").write_text("12")
    assert cgroups.starved(folders, 7, killed) is starved
    assert cgroups.starved(folders, 8, killed) is False
    assert cgroups.starved({}, 7, killed) is False


def test_cgroups_of_dead_children_are_removed_once_they_are_empty(kernel, folders):
    for child in (1, 2, 3):
        cgroups.make(folders, child, None)
    os.mkdir(os.path.join(folders["memory"], "not-ours"))
    kernel.busy = {"2"}
    assert not cgroups.clear(folders, {3})
    assert folders_in(folders["memory"]) == ["2", "3", "not-ours"]
    kernel.busy = set()
    assert cgroups.clear(folders, {3})
    assert cgroups.clear(folders, set())
    assert folders_in(folders["memory"]) == ["not-ours"]


def test_without_cgroups_nothing_is_done():
    cgroups.make({}, 7, 1)
    cgroups.enter({}, 7)
    cgroups.keep_on({}, 7, {0})
    cgroups.kill({}, 7)
    cgroups.hide({})
    cgroups.tidy({})
    cgroups.finish({})
    assert cgroups.clear({}, set())
    assert cgroups.hold({}) == []


@pytest.fixture
def mine(kernel, tmp_path, monkeypatch):
    """The simulated cgroups of this process."""
    names = ["memory", "cpuset"] if kernel.version == 1 else ["v2"]
    for name in names:
        os.mkdir(tmp_path / name)
    found = {name: str(tmp_path / name) for name in names}
    monkeypatch.setattr(cgroups, "own", lambda *_: found)
    monkeypatch.setattr(cgroups, "_try", lambda folders: None)
    return found


def folders_in(place: str) -> list[str]:
    return sorted(entry.name for entry in os.scandir(place) if entry.is_dir())


def test_a_server_makes_its_folder_and_removes_it(kernel, mine):
    parent = next(iter(mine.values()))
    Path(parent, "cgroup.procs").write_text(str(os.getpid()))
    found, why = cgroups.find(["memory", "cpuset"])
    assert (sorted(found), why) == (["cpuset", "memory"], "")
    assert all(f"rpcsys-server-{os.getpid()}-" in folder for folder in found.values())
    if kernel.version == 2:
        assert Path(parent, "cgroup.procs").read_text().split() == []
        assert Path(found["memory"], "server", "cgroup.procs").read_text().split() == [str(os.getpid())]
        for folder in (parent, found["memory"]):
            assert Path(folder, "cgroup.subtree_control").read_text() == "cpuset memory"
    cgroups.make(found, 1, 1 << 20)
    cgroups.finish(found)
    assert [folders_in(place) for place in mine.values()] == [[]] * len(mine)
    assert kernel.version == 1 or Path(parent, "cgroup.procs").read_text().split() == [str(os.getpid())]


@pytest.mark.parametrize("kernel", [2], indirect=True)
def test_a_cgroup_with_other_processes_is_not_used(kernel, mine):
    Path(mine["v2"], "cgroup.procs").write_text(f"{os.getpid()} 1")
    assert cgroups.find(["memory"]) == ({}, "other processes are in this server's cgroup")
    assert folders_in(mine["v2"]) == []


@pytest.mark.parametrize("kernel", [2], indirect=True)
@pytest.mark.parametrize("file", ["cgroup.procs", "cgroup.subtree_control"])
def test_a_refused_write_leaves_the_cgroups_unchanged(kernel, mine, file):
    Path(mine["v2"], "cgroup.procs").write_text(str(os.getpid()))
    kernel.refused = {file}
    assert cgroups.find(["memory"]) == ({}, "refused")
    kernel.refused = set()
    assert Path(mine["v2"], "cgroup.subtree_control").read_text() == ""
    assert Path(mine["v2"], "cgroup.procs").exists()


@pytest.mark.parametrize("kernel", [2], indirect=True)
def test_controllers_that_are_not_delegated_are_not_used(kernel, mine):
    Path(mine["v2"], "cgroup.controllers").write_text("pids")
    assert cgroups.find(["memory"]) == ({}, "their controllers are not delegated to this server")
    assert folders_in(mine["v2"]) == []


def test_folders_of_killed_servers_are_removed_by_the_next_server(kernel, mine):
    parent = next(iter(mine.values()))
    alive = work_folders.make_folder(parent)  # its descriptor stays open: that server lives
    dead = os.path.join(parent, "rpcsys-server-1-0123abcd")
    os.mkdir(dead)
    os.mkdir(os.path.join(dead, "4"))
    left = work_folders.abandoned(alive)
    assert list(left) == [dead]
    cgroups._remove_abandoned(left)
    assert folders_in(parent) == [os.path.basename(alive)]
