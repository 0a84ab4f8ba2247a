from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.cli.commands import run_group
from rpcsys.cli.run import _plain, arrays_of, load_inputs, output_files, parse_labels, save_arrays
from rpcsys.cli.timings import time_calls
from rpcsys.errors import UsageError
from rpcsys.graph import samples
from rpcsys.lab import Lab
from tests.cli.conftest import Command
from tests.client.inference.scripted import ScriptedServer
from tests.live import deployed
from tests.live.daemons import Daemons


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("model") / "squeezenet.onnx"
    samples.save(samples.light_model("squeezenet"), path)
    return path


@pytest.mark.live
def test_runs_times_and_prints(lab: Lab, model: Path, rpcsys: Command) -> None:
    done = rpcsys("run", "--key", "cpu", model, "--repeat", "3", tracker=lab.tracker_address)
    assert done.returncode == 0, done.stderr
    assert "random (seed 0)" in done.stdout
    assert re.search(r"data_0 +float32 \[1, 3, 224, 224\]", done.stdout)
    assert re.search(r"softmaxout_1 +float32 \[1, 1000, 1, 1\]", done.stdout)
    assert re.search(r"time: +median [\d.]+ .*\(3 repeats\)", done.stdout)


@pytest.mark.live
def test_inputs_from_a_file(lab: Lab, model: Path, tmp_path: Path, rpcsys: Command) -> None:
    image = np.full((1, 3, 224, 224), 0.25, "float32")
    np.savez(tmp_path / "in.npz", data_0=image)
    done = rpcsys("run", "--key", "cpu", model, "in.npz", "--repeat", "1", tracker=lab.tracker_address)
    assert done.returncode == 0, done.stderr
    assert "min 0.25  mean 0.25  max 0.25" in done.stdout
    expected = samples.run_here(model, {"data_0": image})["softmaxout_1"]
    assert f"max {expected.max():.4g}" in done.stdout


def test_a_missing_file_of_weights_is_an_error_before_a_device_is_leased(tmp_path: Path, rpcsys: Command) -> None:
    onnx = pytest.importorskip("onnx")
    weight = onnx.numpy_helper.from_array(np.zeros(4, "float32"), "w")
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [weight]))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "weights").unlink()
    done = rpcsys("run", "--key", "cpu", "m.onnx", tracker=("127.0.0.1", 1))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"m.onnx keeps weights in 'weights', and {tmp_path} has no such file: put it there, or" in done.stderr


@pytest.mark.live
def test_the_device_is_free_again(lab: Lab, model: Path, rpcsys: Command) -> None:
    for _ in range(2):
        done = rpcsys("run", "--key", "cpu", "--wait-timeout", 30, "--repeat", 1, model, tracker=lab.tracker_address)
        assert done.returncode == 0, done.stderr


@pytest.mark.live
def test_errors_are_one_line(lab: Lab, model: Path, tmp_path: Path, rpcsys: Command) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model at all")
    np.savez(tmp_path / "name.npz", wrong=np.zeros(3, "float32"))
    np.savez(tmp_path / "shape.npz", data_0=np.zeros((1, 3, 224), "float32"))
    np.savez(tmp_path / "dtype.npz", data_0=np.zeros((1, 3, 224, 224), "int64"))
    for args, message in [
        (["--key", "cpu", "broken.onnx"], "broken.onnx"),
        (["--key", "cpu", model, "name.npz"], "data_0"),
        (["--key", "cpu", model, "shape.npz"], "data_0"),
        (["--key", "cpu", model, "dtype.npz"], "data_0"),
        (["--key", "cpu", model, "nowhere.npz"], "cannot read nowhere.npz"),
        (["--key", "cpus", model], "no server offers 'cpus'; there is cpu"),
    ]:
        done = rpcsys("run", *args, tracker=lab.tracker_address)
        line = done.stderr.splitlines()[-1]
        assert done.returncode in (1, 2)
        assert line.startswith("rpcsys: error: ")
        assert message in line
        assert "Traceback" not in done.stderr


@pytest.mark.live
def test_waiting_shows_the_place_in_the_queue_and_times_out(lab: Lab, model: Path, rpcsys: Command) -> None:
    with lab.connect() as tracker, tracker.request("cpu", wait_timeout=30):
        done = rpcsys("run", "--key", "cpu", "--wait-timeout", 1, model, tracker=lab.tracker_address)
    assert done.returncode == 1
    place, error = done.stderr.splitlines()
    assert place.startswith("  waiting for a device: place 1 in the queue, taken by ")
    assert error.startswith("rpcsys: error: ")


@pytest.mark.live
def test_json_labels_a_file_of_outputs_and_several_devices(model: Path, tmp_path: Path, rpcsys: Command) -> None:
    with Lab({"cpu": 2}) as lab:
        wanted = ("--label", "cores>=1", "--label", "onnxruntime>=1.9")
        lease = ("--key", "cpu", *wanted, "--count", 2, "--priority", 3, "--session-timeout", 60)
        words = ("run", *lease, "-o", "out.npz", "--json", "--repeat", 2, model)
        done = rpcsys(*words, tracker=lab.tracker_address)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["file"] for row in rows] == ["out-0.npz", "out-1.npz"]
    for row in rows:
        assert row["seed"] == 0
        assert row["inputs"]["data_0"]["shape"] == [1, 3, 224, 224]
        assert len(row["time_s"]["results"]) == 2
        assert row["time_s"]["median"] > 0
        assert row["time_s"]["interval"] is None
        assert row["time_s"]["board"]["after"]["load"] >= 0
        with np.load(tmp_path / row["file"]) as written:
            (output,) = (written[name] for name in written.files)
        assert row["outputs"]["softmaxout_1"]["max"] == float(output.max())
        assert output.shape == (1, 1000, 1, 1)


@pytest.mark.live
def test_a_deployed_module_needs_no_lease(tmp_path: Path, rpcsys: Command) -> None:
    daemons = Daemons(tmp_path)
    try:
        tracker = daemons.tracker()
        daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(tmp_path / "deploy"), tracker=tracker)
        model = deployed.onnx_model(tmp_path / "scale.onnx", 3)
        put = rpcsys("deploy", model, "--key", "edge", "--tracker", tracker.where)
        assert put.returncode == 0, put.stderr
        np.savez(tmp_path / "in.npz", x=np.full(4, 2, np.float32))
        done = rpcsys("run", "--serve", "scale", "in.npz", "--tracker", tracker.where, "--repeat", 2)
        unknown = rpcsys("run", "--serve", "scall", "--tracker", tracker.where)
    finally:
        daemons.stop()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("module: scale 0001-")
    assert "min 6  mean 6  max 6" in done.stdout
    assert "(2 repeats)" in done.stdout
    assert "scall" in unknown.stderr


@pytest.mark.live
def test_a_server_with_a_standing_key_needs_no_tracker(tmp_path: Path, rpcsys: Command) -> None:
    daemons, key_file = Daemons(tmp_path), tmp_path / "edge.key"
    try:
        daemon = daemons.server("edge", *deployed.WITH_NUMPY, "--standing-key", str(key_file))
        model = deployed.onnx_model(tmp_path / "scale.onnx", 3)
        np.savez(tmp_path / "in.npz", x=np.full(4, 2, np.float32))
        given = ("run", model, "in.npz", "--server", daemon.where)
        done = rpcsys(*given, "--key-file", key_file, "--repeat", 2)
        refused = rpcsys(*given, "--key", "edge")
        key_file.chmod(0o644)
        readable = rpcsys(*given, "--key-file", key_file)
    finally:
        daemons.stop()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("device: edge at 127.0.0.1:")
    assert "min 6  mean 6  max 6" in done.stdout
    assert "'edge' is not served at" in refused.stderr
    assert (readable.returncode, readable.stderr) == (
        2,
        f"rpcsys: error: others may read the key {key_file}: type chmod 600 {key_file}\n",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--key-file", __file__, "model.onnx"], "--key-file is for one server: say which, with --server HOST:PORT"),
        (["--server", "edge", "--label", "a=1", "m.onnx"], "on one device, without a tracker: leave out --label"),
        (["--server", "edge:1", "--key", "a", "--key-file", __file__, "m.onnx"], "--key and --key-file: leave out one"),
        (["--server", "edge:1", "--key-file", "none", "m.onnx"], "cannot read the key none: No such file or directory"),
        (["--server", "edge:x", "m.onnx"], "edge:x"),
        (["--serve", "head", "--server", "edge"], "without a tracker: leave out --serve"),
        (["--key", "cpu"], "give a MODEL to run, or --serve NAME to call a deployed module"),
        (["model.onnx"], "give --key, the kind of device to lease (query_tracker lists them), or a --label"),
        (["--key", "cpu", "model.onnx"], "no such model: model.onnx"),
        (["--key", "cpu", "model.onnx", "--label", "cores"], "labels look like arch=aarch64 or 'cores>=4'"),
        (["--key", "cpu", "model.onnx", "--label", "cores>="], "in quotes: a shell reads > and < otherwise"),
        (["--key", "cpu", "model.onnx", "--label", "a=1", "--label", "a=2"], "a is 1 already; a label has one value"),
        (["--key", "cpu", "model.onnx", "--label", "a=1", "--label", "a>2"], "a is 1 already; a label has one value"),
        (["--key", "cpu", __file__, "-o", "out.txt"], "outputs are written as .npz; type: -o out.txt.npz"),
        (["--key", "cpu", __file__, "-o", "no/out.npz"], "-o no/out.npz: there is no folder no"),
        (["--key", "cpu", __file__, "--count", "0"], "'--count'"),
        (["--key", "cpu", __file__, "--session-timeout", "0"], "'--session-timeout'"),
        (["--serve", "head", "--key", "cpu"], "calls a module that clients share, without a lease: leave out --key"),
        (["--serve", "head", "--label", "a=1"], "without a lease: leave out --label"),
        (["--serve", "head", "--session-timeout", "3"], "without a lease: leave out --session-timeout"),
        (["--serve", "head", "model.onnx", "in.npz"], "--serve runs a deployed module: leave out model.onnx"),
        (["--serve", "head", "in.npz"], "cannot read in.npz: No such file"),
    ],
)  # fmt: skip
def test_a_command_line_that_makes_no_sense_is_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_group(["run", *words]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert message in output.err


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["onnxruntime>=1.22"], {"onnxruntime": ">=1.22"}),
        (["onnxruntime=>=1.22,<2"], {"onnxruntime": ">=1.22,<2"}),
        (["onnxruntime>=1.22", "onnxruntime<2", "onnxruntime!=1.23.0"], {"onnxruntime": ">=1.22,<2,!=1.23.0"}),
        (["onnxruntime >= 1.22"], {"onnxruntime": ">= 1.22"}),
        (["python==3.11.*", "tvm=0.27.0", "kernel<6.1"], {"python": "=3.11.*", "tvm": "0.27.0", "kernel": "<6.1"}),
        (["driver!=535", "cores>4", "cores<=8"], {"driver": "!=535", "cores": ">4,<=8"}),
    ],
)
def test_labels_are_compared(texts: list[str], labels: dict[str, str]) -> None:
    assert parse_labels(texts) == labels


@pytest.mark.parametrize("text", ["", "=", "=1", ">=1", "a", "a=", "a!", "a!1", "a>", "a>= ", "a==", "a=>="])
def test_other_texts_are_no_labels(text: str) -> None:
    with pytest.raises(UsageError, match="labels look like"):
        parse_labels([text])


def test_labels_are_equal_or_at_least() -> None:
    texts = ["arch=aarch64", "cores>=4", "memory_mb=>=512", "os=a=b", "arch=aarch64"]
    assert parse_labels(texts) == {"arch": "aarch64", "cores": ">=4", "memory_mb": ">=512", "os": "a=b"}


@given(st.text())
def test_any_text_is_a_label_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        ((name, value),) = parse_labels([text]).items()
        assert name.strip()
        assert value
        assert name in text


def test_each_device_has_a_file_of_outputs(tmp_path: Path) -> None:
    assert output_files(None, 3) == []
    assert output_files(tmp_path / "o.npz", 1) == [tmp_path / "o.npz"]
    assert output_files(tmp_path / "o.npz", 2) == [tmp_path / "o-0.npz", tmp_path / "o-1.npz"]


def test_outputs_of_any_name_are_written(tmp_path: Path) -> None:
    outputs = {"file": np.arange(3), "a/b": np.array(["text"], object), "one": np.float32(2), "rows": [np.ones(1)] * 2}
    save_arrays(tmp_path / "o.npz", arrays_of(outputs))
    loaded = load_inputs(tmp_path / "o.npz")
    assert {name: value.tolist() for name, value in loaded.items()} == {
        "file": [0, 1, 2], "a/b": ["text"], "one": 2.0, "rows": [[1.0], [1.0]],
    }  # fmt: skip
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        save_arrays(tmp_path, loaded)


def test_maps_and_ragged_lists_are_no_arrays() -> None:
    maps = {
        "map": np.array([{}], object),
        "zipmap": [{"a": 1.0}],
        "ragged": [np.zeros(2), np.zeros(3)],
        "one": {1: 2.0},
    }
    assert list(arrays_of({**maps, "label": np.array(["a"], object)})) == ["label"]


def test_a_value_that_is_no_array_is_whole_in_json() -> None:
    value = [{"a": np.float32(0.5), 1: float("nan")}, {"b": np.arange(2)}, "s", None, True, b"x"]
    assert _plain(value) == [{"a": 0.5, "1": None}, {"b": [0, 1]}, "s", None, True, "b'x'"]


def test_calls_of_a_deployed_module_are_timed_here() -> None:
    class Served:
        def __init__(self) -> None:
            self.fed: list[Any] = []

        def run(self, feed: Any) -> None:
            self.fed.append(feed)

    served = Served()
    assert len(time_calls(served, {"x": 1}, 3).results) == 3  # type: ignore[arg-type,dict-item]
    assert served.fed == [{"x": 1}] * 3


def test_load_gives_every_array_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=np.arange(3), b=np.zeros((2, 2), "float32"))
    loaded = load_inputs(tmp_path / "in.npz")
    assert loaded["a"].tolist() == [0, 1, 2]
    assert loaded["b"].dtype == np.float32


def test_the_error_for_a_file_that_is_no_npz_of_plain_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "object.npz", a=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("not an archive", encoding="utf-8")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "object.npz").read_bytes()[:60])
    (tmp_path / "empty.npz").write_bytes(b"")
    for name, message in [
        ("one.npy", "holds one array"),
        ("object.npz", "no .npz file of plain arrays"),
        ("text.npz", "no .npz file of plain arrays"),
        ("cut.npz", "no .npz file of plain arrays"),
        ("empty.npz", "no .npz file of plain arrays"),
        ("nowhere.npz", "cannot read .*nowhere.npz: No such file"),
    ]:
        with pytest.raises(UsageError, match=message):
            load_inputs(tmp_path / name)


@pytest.mark.live
def test_strings_go_in_and_maps_come_out(lab: Lab, tmp_path: Path, rpcsys: Command) -> None:
    onnx = pytest.importorskip("onnx")
    helper, floats, strings = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.STRING
    nodes = [
        helper.make_node("Identity", ["s"], ["t"]),
        helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b"]),
    ]
    row = helper.make_map_type_proto(strings, helper.make_tensor_type_proto(floats, None))
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("s", strings, [None]), helper.make_tensor_value_info("x", floats, [None, 2])],
        [
            helper.make_tensor_value_info("t", strings, [None]),
            helper.make_value_info("y", helper.make_sequence_type_proto(row)),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", s=np.array(["ja", "nein"]), x=np.float32([[0.25, 0.75]]))
    done = rpcsys("run", "--key", "cpu", "m.onnx", "in.npz", "--repeat", 2, tracker=lab.tracker_address)
    assert done.returncode == 0, done.stderr
    assert re.search(r"t +strings \[2\]  ja, nein", done.stdout)
    assert re.search(r"y +list of 1  {a: 0.25, b: 0.75}", done.stdout)
    assert re.search(r"time: +median", done.stdout)
    words = ("m.onnx", "in.npz", "--repeat", 1, "-o", "out.npz", "--json")
    done = rpcsys("run", "--key", "cpu", *words, tracker=lab.tracker_address)
    assert "rpcsys: warning: out.npz is without 'y': no arrays of numbers or text" in done.stderr
    assert json.loads(done.stdout)["outputs"]["y"]["value"] == [{"a": 0.25, "b": 0.75}]
    assert load_inputs(tmp_path / "out.npz")["t"].tolist() == ["ja", "nein"]
    np.savez(tmp_path / "objects.npz", s=np.array(["ja"], dtype=object))
    done = rpcsys("run", "--key", "cpu", "m.onnx", "objects.npz", tracker=lab.tracker_address)
    assert done.stderr.splitlines()[-1].endswith("save strings with .astype(str)")


# --- a model on an inference server ------------------------------------------------------------------


def test_a_model_on_an_inference_server_is_run(tmp_path: Path, rpcsys: Command) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((3, 4), "f4"))
    with ScriptedServer() as server:
        done = rpcsys("run", server.url, "in.npz", "--repeat", 3, "-o", "out.npz")
        assert done.returncode == 0, done.stderr
        assert server.url in done.stdout
        assert re.search(r"y +float32 \[3, 4\].* min 2  mean 2  max 2", done.stdout)
        assert re.search(r"time: +median [\d.]+ .*\(3 repeats\)", done.stdout)
        assert np.array_equal(np.load(tmp_path / "out.npz")["y"], np.full((3, 4), 2, "f4"))
        assert len(server.calls()) == 4
        done = rpcsys("run", server.url, "--repeat", 1, "--json")
        assert json.loads(done.stdout)["model"] == server.url


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["http://127.0.0.1:1/models/m"], "no URL of a model"),
        (["http://127.0.0.1:1/v2/models/m"], "no inference server at 127.0.0.1:1"),
        (["http://127.0.0.1:1/v2/models/m", "--key", "cpu"], "a URL says where the model is: leave out --key"),
        (["http://127.0.0.1:1/v2/models/m", "none.npz"], "cannot read none.npz"),
    ],
)
def test_a_url_that_cannot_be_run_is_one_line(args: list[str], words: str, rpcsys: Command) -> None:
    done = rpcsys("run", *args)
    assert done.returncode != 0
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
