"""What is compared: texts, names, arguments, and how results differ."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.client import Session
from rpcsys.errors import ModelError, NotSupported, RemoteFunctionError, UsageError
from rpcsys.measure.subjects import Subject, Uploaded, arguments, check_file, difference, names, parse


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("model.onnx", Subject(Path("model.onnx"))),
        ("a/b.so@function=add", Subject(Path("a/b.so"), "add")),
        ("m.onnx@device=opencl:0,threads=2", Subject(Path("m.onnx"), settings={"device": "opencl:0", "threads": 2})),
        ("me@home.onnx", Subject(Path("me@home.onnx"))),
        ("me@home.onnx@threads=1", Subject(Path("me@home.onnx"), settings={"threads": 1})),
        (Path("model.onnx"), Subject(Path("model.onnx"))),
    ],
)
def test_texts(text: str, subject: Subject):
    assert parse(text) == subject
    assert parse(subject) is subject
    assert parse(subject.text) == subject


def test_a_file_may_have_the_name_of_settings(tmp_path: Path):
    path = tmp_path / "m@threads=2"
    path.touch()
    assert parse(path) == Subject(path)


@pytest.mark.parametrize(
    "text", ["m@colour=red", "m@threads=0", "m@threads=two", "m@threads=٣", "m@threads=", "m@device=a,device=b", "m@=1"]
)
def test_wrong_settings_are_one_line(text: str):
    with pytest.raises(UsageError, match=r"is no setting of a model; write MODEL|threads is a whole number"):
        parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_subject_or_a_usage_error(text: str):
    problem = ""
    try:
        assert isinstance(parse(text), Subject)
    except UsageError as error:
        problem = str(error)
    assert "\n" not in problem


def test_names_tell_subjects_apart():
    assert names([parse("a/m.onnx"), parse("b/n.onnx@threads=2")]) == ["m.onnx", "n.onnx@threads=2"]
    assert names([parse("a/m.onnx"), parse("b/m.onnx")]) == ["a/m.onnx", "b/m.onnx"]
    assert names([parse("m.onnx"), parse("m.onnx")]) == ["m.onnx (no. 1)", "m.onnx (no. 2)"]


def test_files_are_checked_before_a_board_is_leased(two_models: tuple[Path, Path], tmp_path: Path):
    for path in two_models:
        check_file(Subject(path), None)
        check_file(Subject(path), {"x": np.zeros((4, 64), "f4")})
        with pytest.raises(UsageError, match="has no input 'z'"):
            check_file(Subject(path), {"z": np.zeros(1)})
        with pytest.raises(UsageError, match="no name of a device"):
            check_file(Subject(path, settings={"device": "gpu"}), None)
    with pytest.raises(UsageError, match="no such model"):
        check_file(Subject(tmp_path), None)


def test_arguments_are_random_or_given_by_name():
    specs = [{"name": name, "dtype": "float32", "shape": [2]} for name in "ab"]
    model: Any = SimpleNamespace(inputs=specs)
    drawn = arguments(model, "main", None)
    assert [each.shape for each in drawn] == [(2,), (2,)]
    assert np.array_equal(drawn, arguments(model, "main", None))
    assert arguments(model, "main", {"b": 1, "a": 2}) == [2, 1]
    assert arguments(model, "other", {"b": 1, "a": 2}) == [1, 2]
    assert arguments(SimpleNamespace(inputs=[]), "main", None) == []


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (np.ones(3), np.ones(3), ""),
        (np.ones(3), np.array([1, 1.5, 1]), "outputs differ by at most 0.5"),
        ([np.ones(3), 2], (np.ones(3), 2), ""),
        (np.ones(3), np.ones((3, 1)), "output 0 has shape [3, 1], not [3]"),
        ((1, 2), 1, "has 1 outputs, not 2"),
        (np.array([np.nan, 1]), np.array([np.nan, 1]), ""),
        (np.array([np.nan, 1]), np.array([1, 1]), "output 0 differs in what is not a number"),
        ("a", "b", "output 0 differs"),
        (None, None, ""),
        (np.array([], "f4"), np.array([], "f4"), ""),
        (np.array([True]), np.array([False]), "outputs differ by at most 1"),
    ],
)
def test_differences_of_results(first: Any, second: Any, said: str):
    assert difference(first, second) == said


def test_a_subject_is_sent_once_and_loaded_often(shared_session: Session, spin: Path, monkeypatch: pytest.MonkeyPatch):
    uploads = []
    upload = Session.upload
    monkeypatch.setattr(Session, "upload", lambda *args, **more: uploads.append(args) or upload(*args, **more))
    subject = Uploaded(shared_session, Subject(spin, "base"), "sent-once")
    assert [subject.load()[1]() for _ in range(3)] == [None] * 3
    assert len(uploads) == 1
    assert shared_session.listdir("sent-once") == [spin.name]


def test_what_cannot_be_loaded_is_an_error_of_one_line(shared_session: Session, spin: Path, tmp_path: Path):
    with pytest.raises(RemoteFunctionError, match="it has base, slower"):
        Uploaded(shared_session, Subject(spin, "none"), "f").load()
    with pytest.raises(NotSupported, match="cannot set colour; leave it out"):
        Uploaded(shared_session, Subject(spin, settings={"colour": 1}), "f").load()
    (tmp_path / "m.so").write_bytes(os.urandom(100))
    with pytest.raises(ModelError):
        Uploaded(shared_session, Subject(tmp_path / "m.so"), "f").load()
