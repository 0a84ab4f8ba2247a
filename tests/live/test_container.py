"""The images of tracker and proxy, and of the gateway: built by buildah from its Containerfile, and run.

A test machine may not reach a registry: Debian's Python, unpacked from packages, replaces the Containerfile's base
image.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import rpcsys
from rpcsys import data
from tests.live import deployed, gateways
from tests.live.daemons import ROOT, START_S, STOP_S, Daemon, Daemons, descendants, free_port, wait_free
from tests.live.emulated import Machine, unpacked
from tests.live.inference_load import GrpcCaller, HttpCaller

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BASE, IMAGE, GATEWAY = "localhost/base", "localhost/rpcsys", "localhost/rpcsys-gateway"
BUILDS_WITH = ("click", "grpcio", "numpy", "orjson", "prometheus-client", "tornado", "uvloop", "hatchling")
ADDED_MB_AT_MOST = 40
BUILD_S = 300.0


class Buildah:
    """buildah with its own storage, without mounts and without a registry."""

    def __init__(self, folder: Path) -> None:
        assert shutil.which("buildah"), "this test builds an image; type: apt-get install buildah"
        storage = ("--root", str(folder / "storage"), "--runroot", str(folder / "run"))
        self.command = ("buildah", *storage, "--storage-driver", "vfs")

    def __call__(self, *words: str | Path) -> str:
        command = [*self.command, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """buildah with the built image; its storage is removed afterwards."""
    folder = tmp_path_factory.mktemp("containers")
    made = Buildah(folder)
    packages = ("base-files", "coreutils", "dash", "libstdc++6", "python3-pip", "python3-venv")
    base = unpacked(Machine("x86_64", "amd64", "x86_64-linux-gnu", packages=packages), folder)
    made("from", "--name", "base", "scratch")
    made("copy", "--quiet", "base", base, "/")
    made("commit", "--quiet", "base", BASE)
    packages_of = f"{wheels(base, folder / 'wheels')}:/wheels:ro"
    for image, more in ((IMAGE, ()), (GATEWAY, ("--build-arg", "GATEWAY=yes"))):
        made(
            *("bud", "--isolation", "chroot", "--network", "host", "--pull-never", "--tag", image, *more),
            *("--build-arg", f"BASE={BASE}", "--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/wheels"),
            *("--volume", packages_of, "--file", data.folder("packaging") / "Containerfile", ROOT),
        )
    yield made
    shutil.rmtree(folder)


def wheels(base: Path, folder: Path) -> Path:
    """Download the wheels that pip installs in the image; their folder."""
    version = (base / "usr/bin/python3").readlink().name.removeprefix("python")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)),
        *("--only-binary=:all:", "--python-version", version, *BUILDS_WITH),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def megabytes(buildah: Buildah, image: str) -> float:
    number, unit = json.loads(buildah("images", "--json", image))[0]["size"].split()
    return float(number) * {"kB": 1e-3, "MB": 1.0, "GB": 1e3}[unit]


def test_the_image_is_small_and_runs_without_privileges(buildah: Buildah, record_property) -> None:
    added = megabytes(buildah, IMAGE) - megabytes(buildah, BASE)
    record_property("added to the base image, MB", round(added, 1))
    assert added < ADDED_MB_AT_MOST
    config = json.loads(buildah("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
    assert config["User"] == "65532:65532"
    assert set(config["ExposedPorts"]) == {"9190/tcp", "8190/tcp", "9090/tcp", "8000/tcp", "8001/tcp"}
    assert list(config["Volumes"]) == ["/var/lib/rpcsys"]


def started(daemons: Daemons, buildah: Buildah, *words: str, image: str = IMAGE) -> Daemon:
    """Start a container of the image; ``words`` replace its default command. Returns when it serves."""
    config = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
    container = buildah("from", "--pull-never", image)
    command = [*config["Entrypoint"], *(words or config["Cmd"])]
    daemon = daemons.launch(words[0], (*buildah.command, "run", "--isolation", "chroot", container, "--", *command))
    daemon.await_ready_line()
    return daemon


def test_the_gateway_serves_and_stops(buildah: Buildah, daemons: Daemons, tmp_path: Path) -> None:
    root = tmp_path / "deploy"
    deployed.put(root, "scale", deployed.onnx_model(tmp_path / "scale.onnx", 2.0))
    server = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(root))
    flags = ("--host", "127.0.0.1", "--port", "0", "--grpc-port", str(free_port()))
    gateway = started(daemons, buildah, "gateway", *flags, "--server", server.where, "--module", "scale", image=GATEWAY)
    gateways.wait_ready(gateway)
    x = np.arange(4, dtype="float32")
    for kind in (HttpCaller, GrpcCaller):
        call = kind(gateway, "scale", x)
        assert np.array_equal(call(), 2 * x)
        call.close()
    os.kill(contained(gateway), signal.SIGTERM)
    assert gateway.process.wait(STOP_S) == 0


def test_tracker_and_proxy_serve_and_stop(buildah: Buildah, daemons: Daemons) -> None:
    flags = ("--host", "127.0.0.1", "--port", "0")
    tracker = started(daemons, buildah, "tracker", *flags, "--state-dir", "/var/lib/rpcsys")
    proxy = started(daemons, buildah, "proxy", *flags, "--tracker", tracker.where)
    daemons.behind(proxy, "cpu", "--tvm", "off", flavour="ours")
    wait_free(tracker, "cpu", 1, START_S)
    with rpcsys.connect_tracker(tracker.address).request("cpu", wait_timeout=START_S) as session:
        assert session.get_function("testing.echo")("through both") == "through both"
    for daemon in (proxy, tracker):
        # A container runtime stops the process in the container. buildah run does not forward signals.
        os.kill(contained(daemon), signal.SIGTERM)
        assert daemon.process.wait(STOP_S) == 0


def contained(daemon: Daemon) -> int:
    """The process in the container."""
    programs = {pid: psutil.Process(pid).cmdline() for pid in descendants(daemon.pid)}
    return next(pid for pid, words in programs.items() if f"rpcsys.{daemon.name}" in words)
