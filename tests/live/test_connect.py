"""TVM's unmodified client in a closed lab, through ``rpcsys connect``."""

from __future__ import annotations

import gc
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from rpcsys.link import credential
from tests.live.artefacts import LENGTH, Artefacts
from tests.live.daemons import START_S, Daemon, Daemons, free_port, wait_free, wait_until
from tests.live.labs import LabOnDisk, desk_of
from tests.live.probe import TrackerProbe
from tests.scripted_peers import MAGIC

tvm = pytest.importorskip("tvm")
rpc = pytest.importorskip("tvm.rpc")

KEY, SLOTS = "rpi4", 2
ENDS_S = 10.0  # until a session without its client is over, on a busy machine


@dataclass
class Closed:
    """A closed lab with one server, and a desk with its forwarder."""

    lab: LabOnDisk
    tracker: Daemon
    server: Daemon
    desk: Daemon
    environment: dict[str, str]
    unseeing: dict[str, str]  # that of a member without any right

    def request(self, **options):
        return rpc.connect_tracker(*self.desk.address).request(KEY, **options)

    def wait_free(self) -> None:
        gc.collect()
        wait_free(self.tracker, KEY, SLOTS, START_S)


@pytest.fixture(scope="module")
def closed(module_daemons, tmp_path_factory: pytest.TempPathFactory, artefacts: Artefacts) -> Iterator[Closed]:
    daemons, folder = module_daemons(), tmp_path_factory.mktemp("closed")
    lab = LabOnDisk(folder)
    own = folder / "board.json"
    credential.write(str(own), lab.board("board1", (KEY,)))
    desk, unseeing = (desk_of(folder / name, lab.join(name)) for name in ("ann", "cy"))
    lab.allow(f'[[allow]]\nwho = ["ann"]\nkeys = ["{KEY}", "rpi5"]\nrights = ["see"]\n')
    tracker = lab.tracker(daemons)
    more = ("--name", "board1", "--slots", str(SLOTS), "--lab", str(own), "--load-library", str(artefacts.testing))
    server = daemons.server(KEY, *more, tracker=tracker, offers=SLOTS)
    yield Closed(lab, tracker, server, daemons.desk(tracker, desk), desk, unseeing)
    gc.collect()
    daemons.stop()


def test_upload_arrays_and_functions(closed: Closed, artefacts: Artefacts) -> None:
    remote = closed.request(session_timeout=60)
    remote.upload(str(artefacts.addone))
    module = remote.load_module(artefacts.addone.name)
    device = remote.cpu(0)
    values = np.random.rand(LENGTH).astype("float32")
    result = tvm.runtime.tensor(np.zeros(LENGTH, "float32"), device)
    module["addone"](tvm.runtime.tensor(values, device), result)
    np.testing.assert_allclose(result.numpy(), values + 1)
    big = np.random.rand(1 << 22).astype("float32")
    assert np.array_equal(tvm.runtime.tensor(big, device).numpy(), big)
    del module, result, remote, device
    closed.wait_free()


def test_two_sessions_at_once_and_many_in_a_row(closed: Closed) -> None:
    first, second = closed.request(), closed.request()
    assert first.get_function("rpc.test.addone")(1) == 2
    assert second.get_function("rpc.test.addone")(2) == 3
    del first, second
    closed.wait_free()
    for number in range(10):
        remote = closed.request()
        assert remote.get_function("rpc.test.addone")(number) == number + 1
        del remote
    closed.wait_free()


def test_the_queue(closed: Closed) -> None:
    host, port = closed.desk.address
    command = [sys.executable, "-m", "tvm.exec.query_rpc_tracker", "--host", host, "--port", str(port)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert KEY in shown.stdout, shown.stderr


def test_rpc_runner(closed: Closed, artefacts: Artefacts, tmp_path: Path) -> None:
    from tvm.s_tir import meta_schedule as ms

    host, port = closed.desk.address
    runner = ms.runner.RPCRunner(
        ms.runner.RPCConfig(tracker_host=host, tracker_port=port, tracker_key=KEY, session_timeout_sec=60),
        ms.runner.EvaluatorConfig(number=1, repeat=2, min_repeat_ms=10),
        max_workers=SLOTS,
    )
    spec = ms.arg_info.TensorInfo("float32", (LENGTH,))
    path = shutil.copy(artefacts.addone, tmp_path / "candidate.so")
    for future in runner.run([ms.runner.RunnerInput(str(path), "cpu", [spec, spec])] * 4):
        result = future.result()
        assert result.error_msg is None
        assert len(result.run_secs) == 2
    closed.wait_free()


def test_what_the_rules_refuse_is_said_in_tvms_own_error(closed: Closed) -> None:
    with pytest.raises(RuntimeError, match="ann may not lease jetson"):
        rpc.connect_tracker(*closed.desk.address).request("jetson", max_retry=1)


def test_in_the_clear_nothing_is_served(closed: Closed) -> None:
    """Neither with the plain key nor with a whole match key."""
    closed.wait_free()
    for key in (KEY, f"{KEY}:t1-{'0' * 64}-{'0' * 32}"):
        with socket.create_connection(closed.server.address) as sock:
            text = f"client:{key}".encode()
            sock.sendall(struct.pack("<ii", 0xFF271, len(text)) + text)
            assert sock.recv(4) == struct.pack("<i", 0xFF273)


def test_a_killed_client_frees_the_slot(closed: Closed) -> None:
    code = (
        f"from tvm import rpc; r = rpc.connect_tracker{closed.desk.address!r}.request({KEY!r});"
        "print('leased', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "leased\n"
        client.kill()
    closed.wait_free()
    remote = closed.request()
    addone = remote.get_function("rpc.test.addone")
    with TrackerProbe(closed.desk.address) as probe:
        assert probe.summary()["queue_info"][KEY]["free"] == SLOTS - 1
    del addone, remote
    closed.wait_free()


AS_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
SAY = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 30) as sock:
    sock.sendall(bytes.fromhex(sys.argv[2]))
    print(len(sock.recv(4)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_desk_is_refused(closed: Closed) -> None:
    def said(*become: str) -> str:
        command = [*become, sys.executable, "-IS", "-c", SAY, str(closed.desk.address[1]), MAGIC.hex()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
        return done.stdout.strip() or done.stderr.splitlines()[-1].partition(":")[0]

    assert said() == "4"
    assert said(*AS_NOBODY) in ("0", "ConnectionResetError")
    shown = "a connection of another user of this machine (uid 65534) was refused"
    wait_until(lambda: shown in closed.desk.stderr(), START_S, "it is logged")


def test_a_killed_forwarder_ends_its_sessions_and_clients_are_told(closed: Closed, module_daemons) -> None:
    closed.wait_free()
    desk = module_daemons().desk(closed.tracker, closed.environment)
    remote = rpc.connect_tracker(*desk.address).request(KEY)
    addone = remote.get_function("rpc.test.addone")
    assert addone(1) == 2
    desk.kill()
    with pytest.raises(Exception, match=r"kShutdown|reset"):  # as where a server ends
        addone(1)
    wait_free(closed.tracker, KEY, SLOTS, ENDS_S)
    del addone, remote


def test_a_lost_lease_is_shown(closed: Closed, module_daemons, tmp_path: Path) -> None:
    """The server dies; its client has TVM's own error, and the desk says which lease it was."""
    own = tmp_path / "board.json"
    credential.write(str(own), closed.lab.board("board2", ("rpi5",)))
    server = module_daemons().server("rpi5", "--name", "board2", "--lab", str(own), tracker=closed.tracker)
    remote = rpc.connect_tracker(*closed.desk.address).request("rpi5")
    addone = remote.get_function("rpc.test.addone")
    server.destroy()
    with pytest.raises(Exception, match=r"kShutdown|reset"):
        addone(1)
    wait_until(lambda: "the lease of rpi5:t1-" in closed.desk.stderr(), START_S, "it is logged")
    assert "is lost: the connection broke" in closed.desk.stderr()
    del addone, remote


def test_no_log_has_a_secret(closed: Closed) -> None:
    remote = closed.request()
    del remote
    closed.wait_free()
    for daemon in (closed.tracker, closed.server, closed.desk):
        log = daemon.stderr()
        assert "t1-" not in log or "…" in log
        assert not [word for word in log.split() if ":t1-" in word and len(word) > 40]
    assert f"session of {KEY}:t1-" in closed.desk.stderr()


def test_without_a_credential_it_says_what_to_type(daemons: Daemons, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rpcsys", "connect", "--listen", "127.0.0.1:0", "--tracker", "127.0.0.1:9"],
        env=desk_of(tmp_path), capture_output=True, text=True, timeout=START_S,
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.endswith("ask its keeper for an invitation, then type: rpcsys login\n")


def test_a_revoked_member_is_told(daemons: Daemons, tmp_path: Path) -> None:
    lab = LabOnDisk(tmp_path)
    environment = desk_of(tmp_path / "desk", lab.join("bo"))
    desk = daemons.desk(lab.tracker(daemons), environment)
    lab.revoke("bo")

    def refused() -> bool:
        try:
            rpc.connect_tracker(*desk.address).request(KEY, max_retry=1)
        except RuntimeError as error:
            return "this credential is revoked" in str(error)
        return False

    wait_until(refused, START_S, "bo is refused")
    done = subprocess.run(
        [sys.executable, "-m", "rpcsys", "connect", "--listen", "127.0.0.1:0"],
        env=environment, capture_output=True, text=True, timeout=START_S,
    )  # fmt: skip
    assert done.returncode == 4
    assert "this credential is revoked" in done.stderr


def test_the_labs_page_is_on_the_desk(closed: Closed, module_daemons) -> None:
    def page(desk: Daemon, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{desk.ready['http_port']}{path}", timeout=START_S) as found:
                return found.status, found.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    daemons = module_daemons()
    desk = daemons.desk(closed.tracker, closed.environment, "--page", str(free_port()))
    assert KEY in {row["key"] for row in json.loads(page(desk, "/api/lab")[1])["keys"]}
    assert page(desk, "/")[1].startswith("<!doctype html>")
    assert "rpcsys_" in page(desk, "/metrics")[1]
    assert f"<h1>{KEY}</h1>" in page(desk, f"/key/{KEY}")[1]
    assert '"groups"' in page(desk, f"/live/x-1/key/{KEY}")[1]
    for path in ("/nowhere", "/board/nowhere"):
        assert page(desk, path)[0] == 404
    unseeing = daemons.desk(closed.tracker, closed.unseeing, "--page", str(free_port()))
    status, why = page(unseeing, "/")
    assert status == 403
    assert "cy" in why
    assert "see" in why


def test_its_ready_line_and_its_end(daemons: Daemons, tmp_path: Path) -> None:
    lab = LabOnDisk(tmp_path)
    environment = desk_of(tmp_path / "desk", lab.join("bo"))
    desk = daemons.desk(lab.tracker(daemons), environment)
    assert desk.ready["ready"] == "connect"
    assert desk.ready["host"] == "127.0.0.1"
    assert desk.terminate() == 0
