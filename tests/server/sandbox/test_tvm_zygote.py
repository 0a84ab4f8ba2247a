"""The second zygote: it imports TVM for the first of TVM's clients, makes their children, and dies as the first one."""

import json
import os
import signal

import pytest

from rpcsys.server.sandbox import mount_namespace, processes
from rpcsys.server.sandbox.messages import ChildKind
from tests.device import until
from tests.live.processes import children, is_tvm_zygote
from tests.server.sandbox.test_zygote import WHY_NOT, gone

LARGE = "colorsys"  # what the first zygote preloads
#: In the place of TVM's Python: it writes the process that imports it, and what else that has imported.
IMPORTED = f"""
import os, pathlib, sys
others = "{LARGE}" if "{LARGE}" in sys.modules else ""
pathlib.Path(__file__).with_name(f"imported-{{os.getpid()}}").write_text(others)
"""


@pytest.fixture(params=[True, False], ids=["isolated", "shared"])
def isolate(request):
    if request.param and WHY_NOT:
        pytest.skip(f"no namespaces here: {WHY_NOT}")
    return request.param


@pytest.fixture
def zygote(start, isolate, tmp_path, monkeypatch):
    """A zygote whose TVM is the module `tvm.rpc.server` of ``tmp_path``."""
    package = tmp_path / "tvm" / "rpc"
    package.mkdir(parents=True)
    for place in (package.parent, package):
        (place / "__init__.py").touch()
    (package / "server.py").write_text(IMPORTED)
    monkeypatch.syspath_prepend(tmp_path)
    keep = mount_namespace.hidden([os.getcwd(), str(tmp_path)])
    zygote = start(isolate=isolate, tvm="python", tvm_apart=True, preload=[LARGE], keep=keep)
    zygote.package = package
    zygote.next_message("ready")
    return zygote


def both(zygote):
    """A child of each zygote, waiting: the messages of their births."""
    born = [zygote.spawn(1), zygote.spawn(2, ChildKind.TVM)]
    for child in (1, 2):
        zygote.child_message(child, "ready")
    return born


def waiting(zygote):
    """The shell that becomes the second zygote. A list of children may lack some while others end."""
    found = []
    until(lambda: found.extend(filter(is_tvm_zygote, children(zygote.pid))) or found, "it to be listed")
    return found[0]


def imported(zygote):
    return [int(path.name.partition("-")[2]) for path in zygote.package.glob("imported-*")]


def test_children_ordered_at_once_have_one_second_zygote_and_one_import(zygote):
    plain = zygote.spawn(1)
    assert plain["zygote"] == zygote.pid
    assert imported(zygote) == []
    for child in (2, 3, 4):
        zygote.order(child, ChildKind.TVM)
    assert zygote.next_message("importing") == {"importing": "--tvm python", "child": 2}
    born = [zygote.next_message("born", "dead") for _ in (2, 3, 4)]
    assert [one["born"] for one in born] == [2, 3, 4]
    (second,) = {one["zygote"] for one in born}
    assert imported(zygote) == [second]
    assert processes.parent(second) == zygote.pid
    assert all(processes.parent(one["pid"]) == second for one in born)
    assert [zygote.child_message(child, "ready") for child in (2, 3, 4)] == [{"ready": True}] * 3


def test_it_has_nothing_that_the_first_one_preloads(zygote):
    second = waiting(zygote)
    both(zygote)
    (path,) = zygote.package.glob("imported-*")
    assert int(path.name.partition("-")[2]) == second
    assert path.read_text() == ""


def test_one_that_is_killed_before_its_first_child_is_started_again(zygote):
    second = waiting(zygote)
    os.kill(second, signal.SIGKILL)
    assert gone(second)
    assert zygote.spawn(1, ChildKind.TVM)["zygote"] != second
    (path,) = zygote.package.glob("imported-*")
    assert path.read_text() == LARGE  # it is a fork of the first zygote as it is by then


def test_one_that_waits_ends_when_the_first_zygote_is_killed(zygote):
    second = waiting(zygote)
    os.kill(zygote.pid, signal.SIGKILL)
    assert gone(second)


def test_sigterm_to_one_that_waits_removes_nothing(zygote):
    second = waiting(zygote)
    os.kill(second, signal.SIGTERM)
    assert gone(second)
    assert os.path.exists(zygote.folder)
    assert zygote.spawn(1)["zygote"] == zygote.pid


def test_a_child_of_either_is_killed_and_its_descendants_named(zygote, isolate):
    for born in both(zygote):
        number = born["born"]
        zygote.control.send(json.dumps({"kill": number}).encode())
        dead = zygote.next_message("dead")
        assert (dead["dead"], dead["status"], dead["cleaned"]) == (number, -9, [])
        assert gone(born["pid"])
        assert not born["init"] or gone(born["init"])


def test_when_the_second_zygote_is_killed_its_children_die_and_another_is_started(zygote):
    plain, of_tvm = both(zygote)
    os.kill(of_tvm["zygote"], signal.SIGKILL)
    dead = zygote.next_message("dead")
    assert (dead["dead"], dead["status"]) == (2, -9)
    assert gone(of_tvm["pid"])
    assert not of_tvm["init"] or gone(of_tvm["init"])
    assert processes.alive(plain["pid"])
    again = zygote.spawn(3, ChildKind.TVM)
    assert again["zygote"] != of_tvm["zygote"]
    assert zygote.child_message(3, "ready") == {"ready": True}


def test_when_the_first_zygote_is_killed_both_zygotes_children_die(zygote):
    born = both(zygote)
    os.kill(zygote.pid, signal.SIGKILL)
    assert all(gone(one["pid"]) and (not one["init"] or gone(one["init"])) for one in born)
    assert gone(born[1]["zygote"])


def test_both_zygotes_end_with_their_supervisor(zygote):
    born = both(zygote)
    assert zygote.leave() == 0
    assert all(gone(one["pid"]) and (not one["init"] or gone(one["init"])) for one in born)
    assert gone(born[1]["zygote"])
    assert not os.path.exists(zygote.folder)


def test_an_import_that_fails_is_reported_for_its_child_and_tried_again(zygote):
    (zygote.package / "server.py").write_text("1 / 0")
    zygote.order(1, ChildKind.TVM)
    assert zygote.next_message("failed") == {
        "failed": "--tvm python: ZeroDivisionError: division by zero", "child": 1,
    }  # fmt: skip
    dead = zygote.next_message("dead")
    assert (dead["dead"], dead["status"]) == (1, 1)
    (zygote.package / "server.py").write_text(IMPORTED)
    assert zygote.spawn(2, ChildKind.TVM)["born"] == 2


def test_an_import_that_hangs_ends_with_its_child(zygote):
    (zygote.package / "server.py").write_text("import time\ntime.sleep(600)")
    zygote.order(1, ChildKind.TVM)
    zygote.next_message("importing")
    assert zygote.spawn(2)["born"] == 2  # the first zygote makes children meanwhile
    zygote.control.send(b'{"kill": 1}')
    dead = zygote.next_message("dead")
    assert (dead["dead"], dead["status"]) == (1, -9)


def test_without_a_fork_the_child_itself_imports_it(start, zygote, tmp_path):
    fresh = start(isolate=False, fork=False, tvm="python")
    fresh.next_message("ready")
    plain, of_tvm = fresh.spawn(1), fresh.spawn(2, ChildKind.TVM)
    assert fresh.child_message(2, "importing") == {"importing": "--tvm python"}
    for child in (1, 2):
        fresh.child_message(child, "ready")
    assert plain["zygote"] == of_tvm["zygote"] == fresh.pid
    assert imported(zygote) == [of_tvm["pid"]]
