"""The commands `rpcsys deploy`, with a real server, and `rpcsys module`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from tests.cli.conftest import Command
from tests.live import deployed
from tests.live.daemons import Daemons, free_port
from tests.module.libraries import library, tree


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("edge")
    daemons = Daemons(folder)
    try:
        daemon = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(folder / "deploy"))
        yield daemon.where
    finally:
        daemons.stop()


@pytest.mark.live
def test_a_model_is_put_replaced_listed_and_withdrawn(rpcsys: Command, server: str, tmp_path: Path) -> None:
    for factor in (2, 3):
        put = rpcsys("deploy", deployed.onnx_model(tmp_path / "scale.onnx", factor), "--to", server)
        assert (put.returncode, put.stderr.count("\n")) == (0, 1), put.stderr
        assert put.stdout.startswith(f"{server}: serving scale ")
        assert doubled(server) == 2.0 * factor
    for factor in (2, 3):
        back = rpcsys("deploy", "--rollback", "scale", "--to", server)
        assert (back.returncode, back.stderr) == (0, "")
        assert re.fullmatch(rf"{server}: serving scale 000[12]-\w+ again\n", back.stdout)
        assert doubled(server) == 2.0 * factor
    listed = rpcsys("deploy", "--list", "--to", server)
    assert listed.returncode == 0
    assert "scale.onnx  serving" in listed.stdout
    gone = rpcsys("deploy", "--remove", "scale", "--to", server)
    assert (gone.returncode, gone.stdout) == (0, f"{server}: scale is withdrawn\n")
    assert rpcsys("deploy", "--list", "--to", server).stdout == f"{server}: nothing is deployed\n"


@pytest.mark.live
def test_every_server_is_tried_and_has_a_line(rpcsys: Command, server: str, tmp_path: Path) -> None:
    dead = f"127.0.0.1:{free_port()}"
    model = deployed.onnx_model(tmp_path / "scale.onnx", 2)
    for words, line in (
        ((model,), "serving scale 0001-"), (("--list",), ""), (("--remove", "scale"), "scale is withdrawn")
    ):  # fmt: skip
        done = rpcsys("deploy", *words, "--to", dead, "--to", server, "--to", dead)
        assert done.returncode == 1
        assert done.stdout.startswith(f"{server}: {line}".rstrip())
        failed = [line for line in done.stderr.splitlines() if line.startswith("rpcsys: ")]
        assert len(failed) == 2
        assert all(line.startswith(f"rpcsys: error: {dead}: no device server at {dead} (") for line in failed)


def doubled(server: str) -> float:
    """The deployed model's result for 2."""
    host, port = server.split(":")
    with rpcsys.connect(host, int(port), serve="scale") as model:
        return float(model(np.full(4, 2, np.float32))[0])


@pytest.mark.live
@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 2, "give one of these"),
        (("x.onnx", "--list"), 2, "give one of these"),
        (("nowhere.onnx",), 2, "no such file: nowhere.onnx"),
        (("broken.onnx",), 1, "cannot be loaded"),
        (("model.txt",), 1, "it loads .onnx, .tflite, .xml, .vmfb, .so"),
        (("broken.onnx", "--name", "a/b"), 1, "is no name for a module"),
        (("--remove", "nothing"), 1, "no module 'nothing' is deployed"),
        (("--rollback", "nothing"), 1, "no module 'nothing' is deployed"),
        (("--rollback", "x", "--remove", "x"), 2, "give one of these"),
        (("--list", "--key", "edge"), 2, "say to which servers"),
        (("--list", "--tracker", "127.0.0.1:1", "--key-file", "broken.onnx"), 2, "--key-file is for servers without"),
        (("--list", "--to", "edge", "--tracker", "127.0.0.1:1"), 1, "no tracker at 127.0.0.1:1"),
    ],
    ids=[
        *("nothing", "both", "no file", "no model", "no kind", "no name", "not there", "no version", "back and away"),
        *("two ways", "a key file", "no tracker"),
    ],
)
def test_errors_of_deploy_are_one_line(
    rpcsys: Command, server: str, tmp_path: Path, words: tuple[str, ...], status: int, message: str
) -> None:
    for name in ("broken.onnx", "model.txt"):
        (tmp_path / name).write_bytes(b"no model")
    done = rpcsys("deploy", *words, "--to", server)
    assert (done.returncode, done.stdout) == (status, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rpcsys: error: ")
    assert message in last


@pytest.mark.live
def test_servers_are_found_by_their_tracker(rpcsys: Command, tmp_path: Path) -> None:
    daemons = Daemons(tmp_path)
    model = deployed.onnx_model(tmp_path / "scale.onnx", 2)
    try:
        tracker = daemons.tracker()
        for offers, name in enumerate(("e1", "e2"), 1):
            flags = (*deployed.WITH_NUMPY, "--name", name, "--deploy", str(tmp_path / name))
            daemons.server("edge", *flags, tracker=tracker, offers=offers)
        by = ("--tracker", tracker.where)
        put = rpcsys("deploy", model, "--to", "e2", *by)
        listed = rpcsys("deploy", "--list", "--key", "edge", *by)
        unknown = rpcsys("deploy", "--list", "--to", "e3", *by)
        none = rpcsys("deploy", "--list", "--key", "rpi", *by)
    finally:
        daemons.stop()
    assert put.stdout.startswith("e2: serving scale 0001-"), put.stderr
    assert listed.stdout.startswith("e1: nothing is deployed\ne2:\n  scale  0001-"), listed.stderr
    assert "there is no server 'e3'; there are e1, e2" in unknown.stderr
    assert "no server offers 'rpi' now" in none.stderr


@pytest.mark.live
def test_the_error_of_a_server_without_deployments_names_the_flag(rpcsys: Command, tmp_path: Path) -> None:
    daemons = Daemons(tmp_path)
    try:
        daemon = daemons.server("plain", *deployed.FLAGS)
        done = rpcsys("deploy", "--list", "--to", daemon.where)
    finally:
        daemons.stop()
    assert done.returncode == 1
    assert "start it with --deploy DIR" in done.stderr


def test_inspect_shows_the_tree(rpcsys: Command, tmp_path: Path) -> None:
    (tmp_path / "m.so").write_bytes(library(tree(("a", (1,), b"x"), ("b", (), b"y")), ("aarch64", 64)))
    done = rpcsys("module", "inspect", "m.so")
    assert (done.returncode, done.stderr) == (0, "")
    first, root, leaf = done.stdout.splitlines()
    assert first == "m.so: 4188 bytes, aarch64 (64 bits)"
    assert (root.split()[:2], leaf.split()[:2]) == (["[0]", "a"], ["[1]", "b"])
    seen = json.loads(rpcsys("module", "inspect", "m.so", "--json").stdout)
    assert [module["kind"] for module in seen["modules"]] == ["a", "b"]


def test_an_invalid_library_is_one_line(rpcsys: Command, tmp_path: Path) -> None:
    (tmp_path / "m.so").write_bytes(b"text")
    for name, status, words in (
        ("none.so", 2, "no such library: none.so; check the path"),
        ("m.so", 1, "is not an ELF shared library"),
    ):
        done = rpcsys("module", "inspect", name)
        assert (done.returncode, done.stdout) == (status, "")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
