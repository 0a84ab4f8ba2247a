"""A user's mistake at the command line ends in one line that says what happened and what to type next.

`mistakes.txt` has command lines with the exit status and the line of each: those that end before anything is started
run in this process. A shell runs those of `mistakes_shell.txt`, and a lab's daemons answer those of `mistakes_lab.txt`.
In a line, `…` stands for any text, and `{names}` for what a fixture has made.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pytest

from rpcsys import serve
from rpcsys.cli import manual
from rpcsys.cli.commands import group, run_group
from rpcsys.forward.__main__ import main as connect
from rpcsys.gateway.__main__ import main as gateway
from rpcsys.lab import Lab
from rpcsys.proxy.__main__ import main as proxy
from rpcsys.query.__main__ import main as query
from rpcsys.query.__main__ import query as query_tracker
from rpcsys.server.__main__ import main as server
from rpcsys.tracker.__main__ import main as tracker
from tests.live.daemons import ROOT, free_port
from tests.module import libraries

WAIT_S = 60.0
START = ROOT / "packaging" / "board" / "python" / "start.py"  # of a board's server
#: The words that begin a command line, and what runs the rest. The last ones that fit count.
PROGRAMS: Mapping[tuple[str, ...], Callable[[list[str]], int]] = {
    ("rpcsys",): run_group,
    ("query_tracker",): query,
    ("rpcsys", "tracker"): tracker,
    ("rpcsys", "connect"): connect,
    ("rpcsys", "gateway"): gateway,
    ("rpcsys", "proxy"): proxy,
    ("rpcsys", "server"): server,
}
#: What a line says to do next, or asks about the likely cause.
NEXT = re.compile(
    r"\b(add|ask|belong|build|check|choose|convert|copy|export|free|give|has?|install|leave out|letters|look|loads|"
    r"must|name|needs?|put|repair|save|see|start|such as|there (is|are)|try|type|wants?|write|written)\w*\b|\?|"
    r"\(\d+ to \d+\)",
    re.IGNORECASE,
)
#: What `rpcsys run` prints before it fails on a device: where it is, and what it got.
BEGUN = re.compile(r"(device|module|inputs): |  ")


class Mistake(NamedTuple):
    command: str
    status: int
    line: str


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def mistakes(name: str) -> list[Mistake]:
    """The rows of a file: ``$ COMMAND``, and below it ``[STATUS] LINE``."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [Mistake(command, int(status), line) for command, status, line in
            re.findall(r"^\$ (.+)\n\[(\d)\] (.+)$", text, re.MULTILINE)]  # fmt: skip


def each(name: str) -> pytest.MarkDecorator:
    rows = mistakes(name)
    return pytest.mark.parametrize("mistake", rows, ids=[row.command for row in rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, arrays and libraries, whole ones and broken ones."""
    path = tmp_path_factory.mktemp("mistakes")
    make_models(path)
    make_arrays(path)
    tree = libraries.tree(("onnx", (), b"x"))
    libraries.write(path / "foreign.so", tree, ("aarch64", 64))
    libraries.write(path / "broken.so", b"\xff" * 20)
    (path / "cut.so").write_bytes(libraries.library(tree)[:100])
    (path / "text.so").write_text("no library")
    (path / "folder").mkdir()
    os.mkfifo(path / "pipe")
    (path / "prot.flags").write_text("# the server's flags\n--prot\n9190\n")
    (path / "model.docx").write_bytes(b"a document")
    for name, inventory in (("broken", b"{"), ("newer", b'{"form": 9}'), ("binary", b"\xff\xfe")):
        (path / name / "rpcsys").mkdir(parents=True)
        (path / name / "rpcsys" / "boards.json").write_bytes(inventory)
    return path


def make_models(path: Path) -> None:
    """A model of two nodes, which adds one to x, float32 [1, 4], and what is no such model."""
    onnx = pytest.importorskip("onnx")
    float32, helper = onnx.TensorProto.FLOAT, onnx.helper
    ends = [helper.make_tensor_value_info(name, float32, [1, 4]) for name in "xy"]
    nodes = [helper.make_node("Add", ["x", "one"], ["h"], "add"), helper.make_node("Relu", ["h"], ["y"], "relu")]
    for name, place in (("model", ""), ("lost", "lost.bin"), ("outside", "../x.bin"), ("short", "short.bin")):
        one = onnx.numpy_helper.from_array(np.ones((1, 4), "float32"), "one")
        if place:
            onnx.external_data_helper.set_external_data(one, place, 0, 16)
            one.ClearField("raw_data")
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [one])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        (path / f"{name}.onnx").write_bytes(model.SerializeToString())
    texts = [helper.make_tensor_value_info(name, onnx.TensorProto.STRING, [None]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", texts[:1], texts[1:])
    (path / "texts.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    (path / "long.onnx").write_bytes(endless(ends).SerializeToString())
    (path / "short.bin").write_bytes(b"1")
    (path / "cut.onnx").write_bytes((path / "model.onnx").read_bytes()[:60])
    (path / "text.onnx").write_text("this is not a model\n")
    (path / "empty.onnx").touch()


def endless(ends: Sequence[Any]) -> Any:
    """A model that runs for hours: its session ends first, on any machine."""
    from onnx import TensorProto, helper

    turn, go = helper.make_tensor_value_info("i", TensorProto.INT64, []), TensorProto.BOOL
    condition = [helper.make_tensor_value_info(name, go, []) for name in ("on", "on_too")]
    inner = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("a", "b")]
    nodes = [helper.make_node("Identity", ["on"], ["on_too"]), helper.make_node("Relu", ["a"], ["b"])]
    body = helper.make_graph(nodes, "body", [turn, condition[0], inner[0]], [condition[1], inner[1]])
    times = helper.make_tensor("n", TensorProto.INT64, [], [10**12])
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], "loop", body=body)
    graph = helper.make_graph([loop], "g", ends[:1], ends[1:], [times])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def make_arrays(path: Path) -> None:
    """Inputs that fit the model, and files that do not."""
    zeros = np.zeros((1, 4), "float32")
    np.savez(path / "fits.npz", x=zeros)
    np.savez(path / "shape.npz", x=np.zeros((1, 5), "float32"))
    np.savez(path / "dtype.npz", x=np.zeros((1, 4), "int64"))
    np.savez(path / "name.npz", z=zeros)
    np.savez(path / "more.npz", x=zeros, z=zeros)
    np.savez(path / "none.npz")
    np.savez(path / "objects.npz", x=np.array([None], object))
    np.save(path / "one.npy", zeros)
    (path / "text.npz").write_text("no arrays\n")
    (path / "empty.npz").touch()
    (path / "cut.npz").write_bytes((path / "fits.npz").read_bytes()[:100])
    (path / "folder.npz").mkdir()
    with zipfile.ZipFile(path / "zip.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")


@pytest.fixture(scope="module")
def names(folder: Path) -> Iterator[dict[str, str]]:
    """The values of the `{names}`; ``taken`` is a port that is in use, ``dead`` one that is not."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, dead = taken.getsockname()[1], free_port()
        numbers = {"taken": port, "after": port + 1, "dead": dead}
        yield {"folder": str(folder), "start": str(START), **{name: str(number) for name, number in numbers.items()}}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The working folder and the environment of the commands."""
    for name in [name for name in os.environ if "_TRACKER" in name or name in ("RPCSYS_LAB", "RPCSYS_CREDENTIAL")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("COLUMNS", "76")  # `rpcsys man` sets it
    monkeypatch.chdir(folder)


def filled(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def run_here(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """Run a command line in this process, as its entry point does."""
    words = shlex.split(command)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    count = 2 if tuple(words[:2]) in PROGRAMS else 1
    monkeypatch.setattr(serve, "_TYPED", " ".join(words[:2]) if count == 2 else "")  # `rpcsys` sets it for a daemon
    try:
        status = PROGRAMS[tuple(words[:count])](words[count:])
    except SystemExit as end:  # argparse ends so
        status = int(end.code or 0)
    return Ended(status, *capsys.readouterr())


def check(mistake: Mistake, done: Ended, names: Mapping[str, str]) -> None:
    """The exit status and the only line are the row's; nothing is printed as a result, unless a device ran before."""
    assert "Traceback" not in done.err
    lines = [line for line in done.err.splitlines() if not line.startswith("  ")]  # progress is indented
    assert len(lines) == 1, done.err
    assert matches(filled(mistake.line, names), lines[0]), lines[0]
    assert NEXT.search(lines[0].partition("error: ")[2])
    assert done.status == mistake.status
    assert done.status in (1, 2, 3, 4)
    printed = done.out.splitlines()
    assert not printed if done.status != 1 else all(map(BEGUN.match, printed)), done.out


def matches(pattern: str, line: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("…"))), line) is not None


@each("mistakes.txt")
def test_before_anything_starts(
    mistake: Mistake, names: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check(mistake, run_here(filled(mistake.command, names), monkeypatch, capsys), names)


@pytest.mark.slow
@each("mistakes_shell.txt")
def test_in_a_shell(mistake: Mistake, names: dict[str, str], folder: Path) -> None:
    if "root@" in mistake.command and shutil.which("ssh") is None:
        pytest.skip("needs ssh")
    programs = {"python": "", "rpcsys": "-m rpcsys", "query_tracker": "-m rpcsys.query"}
    python = shlex.quote(sys.executable)
    functions = [f'{name}() {{ {python} {module} "$@"; }}' for name, module in programs.items()]
    script = "\n".join([*functions, filled(mistake.command, names)])
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=WAIT_S)
    check(mistake, Ended(done.returncode, done.stdout, done.stderr), names)


def test_a_closed_output_is_no_mistake(folder: Path) -> None:
    script = (
        'for part in "module inspect foreign.so" "server --help" "tracker --help"; do "$0" -m rpcsys $part >&-; done'
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-ec", script, sys.executable], env=env, capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of a lab of one device, as names."""
    deployed = str(tmp_path_factory.mktemp("deployed"))
    with Lab({"cpu": 1}, server_args=["--deploy", deployed, "--tvm", "off"]) as lab:
        where = "127.0.0.1:{}".format
        yield {"tracker": where(lab.daemons[0].port), "server": where(lab.daemons[1].port)}


@pytest.mark.live
@each("mistakes_lab.txt")
def test_in_a_lab(
    mistake: Mistake, names: dict[str, str], lab: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    known = {**names, **lab}
    check(mistake, run_here(filled(mistake.command, known), monkeypatch, capsys), known)


ALL = [*mistakes("mistakes.txt"), *mistakes("mistakes_shell.txt"), *mistakes("mistakes_lab.txt")]


def test_there_are_hundreds() -> None:
    assert len({row.command for row in ALL}) > 250


def test_every_command_has_a_mistake() -> None:
    commands = [*manual._commands(group, ("rpcsys",)), *manual._commands(query_tracker, ("query_tracker",))]
    wanted = {" ".join(words) for words, command in commands if not isinstance(command, click.Group)}
    assert wanted - {name for row in ALL for name in wanted if f"{name} " in f"{row.command} "} == set()
