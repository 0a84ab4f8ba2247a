"""A session's mount namespace: files made inside are not outside, and kept paths are visible."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from rpcsys.server.sandbox import mount_namespace, pid_namespace, work_folders

WHY_NOT = mount_namespace.probe("/tmp/rpcsys-probe")

INSIDE = """
import ctypes, json, os, sys
from rpcsys.server.sandbox.mount_namespace import MountNamespace
from rpcsys.server.sandbox import ipc_cleanup, pid_namespace
folder, home, keep = sys.argv[1], sys.argv[2], sys.argv[3:]
left = pid_namespace.mounts()
pid_namespace.leave(pid_namespace.MOUNTS)
namespace = MountNamespace(left, folder, keep, 1 << 20)
namespace.open(home)
libc = ctypes.CDLL(None)
libc.shmget(0, 4096, 0o600); libc.semget(0, 1, 0o600); libc.msgget(0, 0o600)
for place in ("/tmp/stray-of-a-test", "/dev/shm/stray-of-a-test", home + "/files/kept"):
    open(place, "w").close()
try:
    open("/dev/shm/too much", "wb").write(bytes(2 << 20))
    full = ""
except OSError as error:
    full = error.strerror
os.unlink("/dev/shm/too much")
print(json.dumps({
    "after": os.path.exists(home),
    "kept": [os.path.exists(path) for path in keep],
    "beside": os.listdir(os.path.dirname(home)),
    "var": os.path.exists("/var/tmp/stray-of-a-test"),
    "full": full,
    "seen": ipc_cleanup.seen({"folder": folder, "keep": keep}),
}))
"""


def table(kind):
    with open(f"/proc/sysvipc/{kind}") as file:
        return {line.split()[1] for line in file}


@pytest.mark.skipif(bool(WHY_NOT), reason=f"no namespaces here: {WHY_NOT}")
@pytest.mark.parametrize("place", ["shared", "elsewhere"])
def test_files_made_inside_are_not_outside(tmp_path, place, request):
    if place == "elsewhere" and not os.access("/var", os.W_OK):
        pytest.skip("only who may write there can have directories there")
    folder = work_folders.make_folder(str(tmp_path) if place == "shared" else "/var")
    request.addfinalizer(lambda: shutil.rmtree(folder))
    files = work_folders.make(folder, 1)
    work_folders.make(folder, 2)
    library = tmp_path / "library"
    library.mkdir()
    single = tmp_path / "single.so"
    single.touch()
    keep = [str(library), str(single)]
    # pytest's folders are below /tmp, which is hidden inside
    assert mount_namespace.hidden(keep) == keep
    before = {kind: table(kind) for kind in ("shm", "sem", "msg")}
    done = subprocess.run(
        [sys.executable, "-c", INSIDE, folder, os.path.dirname(files), *keep],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert (report["after"], report["kept"]) == (True, [True, True])
    assert report["beside"] == ["session-1"]
    assert report["full"] == "No space left on device"
    assert report["seen"][:2] == ["/tmp/stray-of-a-test", "/dev/shm/stray-of-a-test"]
    assert [name.rpartition(" ")[0] for name in report["seen"][2:]] == [
        "System V shared memory", "System V semaphores", "System V queue"
    ]  # fmt: skip
    assert not report["var"]
    assert os.listdir(files) == ["kept"]
    assert not os.path.exists("/tmp/stray-of-a-test")
    assert not os.path.exists("/dev/shm/stray-of-a-test")
    assert {kind: table(kind) for kind in before} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_a_user_without_privileges_gets_a_user_namespace(tmp_path):
    code = """
import ctypes, os, sys
from rpcsys.server.sandbox import mount_namespace, pid_namespace  # while its files can be read
folder = sys.argv[1]
os.chown(folder, 65534, 65534)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is its own again, as after an exec
why = mount_namespace.probe(folder)
if why:
    print(why); sys.exit()
left = pid_namespace.mounts()
pid_namespace.leave(pid_namespace.MOUNTS)
mount_namespace.MountNamespace(left, folder)
open("/tmp/mine", "w").close()
print(os.geteuid(), os.listdir("/dev/shm"), os.stat("/tmp/mine").st_uid)
"""
    folder = "/tmp" if not mount_namespace.hidden([str(tmp_path)]) else work_folders.make_folder("/tmp")
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=60, check=True
        )
    finally:
        os.rmdir(folder)
    if not done.stdout.startswith("65534"):
        pytest.skip(f"this kernel gives users no namespaces: {done.stdout.strip()}")
    assert done.stdout.split() == ["65534", "[]", "65534"]


def test_only_paths_below_shared_directories_are_hidden(tmp_path):
    assert mount_namespace.hidden(["/usr", "", "/tmp", sys.executable]) == []


def test_a_missing_folder_is_a_reason_against_namespaces():
    assert mount_namespace.probe("/no such folder/at all")


def test_nothing_is_mounted_in_the_hosts_namespace(monkeypatch):
    monkeypatch.setattr(mount_namespace, "_mount", None)
    with pytest.raises(OSError, match="the host's own mounts"):
        mount_namespace.MountNamespace(pid_namespace.mounts(), "/tmp/rpcsys-probe")


def test_folders_that_their_owners_alone_enter_are_closed(tmp_path):
    (tmp_path / "closed" / "inner").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    (tmp_path / "closed" / "inner" / "file").touch()
    inner = str(tmp_path / "closed" / "inner")
    assert mount_namespace.is_closed(str(tmp_path / "closed"))
    assert not any(map(mount_namespace.is_closed, (inner, inner + "/file", inner + "/none")))
    assert mount_namespace.closed_above([inner, inner + "/file", "/usr/lib", ""]) == []  # it is below /tmp
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mount_namespace, "SHARED", ())
        above = next(str(path) for path in reversed((tmp_path / "closed").parents) if mount_namespace.is_closed(path))
        assert mount_namespace.closed_above([inner, inner + "/file", "/usr/lib"]) == [above]
        (tmp_path / "link").symlink_to(inner)
        link = str(tmp_path / "link")
        assert mount_namespace.hidden([link, "/usr"], [above]) == [inner, link]
        assert mount_namespace.hidden([above], [above]) == []


SECRETS = """
import ctypes, json, os, sys
from rpcsys.server.sandbox import mount_namespace, pid_namespace, privileges
left = pid_namespace.mounts()
pid_namespace.leave(pid_namespace.MOUNTS)
folder, file, closed, kept = sys.argv[1:]
secret = [folder, file, "/no/such"]
mount_namespace.MountNamespace(left, "/tmp/none", [kept], secret=secret, closed=[closed])
privileges.renounce()
libc = ctypes.CDLL(None)
def seen():
    return [os.listdir(folder), open(file).read(), os.listdir(closed), open(kept).read()]
found = [seen()]
for path in (folder, file, closed):
    libc.umount2(path.encode(), 2)
libc.unshare(0x10000000 | 0x00020000)
for path in (folder, file, closed):
    libc.umount2(path.encode(), 2)
print(json.dumps([*found, seen()]))
"""


@pytest.mark.skipif(bool(WHY_NOT) or os.geteuid() != 0, reason=f"no namespaces here: {WHY_NOT}")
def test_secrets_are_empty_and_stay_so(tmp_path):
    place = tempfile.mkdtemp(dir="/var/lib")
    try:
        for name in ("secret", "closed"):
            os.mkdir(f"{place}/{name}")
        for name in ("secret/lab.json", "file", "closed/hidden", "closed/kept"):
            with open(f"{place}/{name}", "w") as file:
                file.write("content")
        paths = [f"{place}/{name}" for name in ("secret", "file", "closed", "closed/kept")]
        done = subprocess.run(
            [sys.executable, "-c", SECRETS, *paths], cwd=os.getcwd(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [[[], "", ["kept"], "content"]] * 2
    finally:
        shutil.rmtree(place)
