"""Models fitted by scikit-learn and LightGBM, exported by skl2onnx and onnxmltools with what these do by default."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graph.running import numbers

Feeds = dict[str, Any]
CLASSES = np.repeat(["a", "b", "c"], 20)


def _rows() -> Any:
    """Sixty rows of four numbers, twenty of each class."""
    return np.vstack([numbers(20, 4, seed=i) + 2 * i for i in range(3)])


def _exported(folder: Path, fitted: Any, rows: Any, **options: Any) -> Feeds:
    skl2onnx = pytest.importorskip("skl2onnx")
    onnx.save(skl2onnx.to_onnx(fitted, rows[:1], **options), folder / "model.onnx")
    return {"X": rows[::7]}


def logistic(folder: Path) -> Feeds:
    """Labels are strings, and probabilities a dict for each row."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    return _exported(folder, linear_model.LogisticRegression().fit(_rows(), CLASSES), _rows())


def logistic_arrays(folder: Path) -> Feeds:
    """Without ZipMap."""
    fitted = pytest.importorskip("sklearn.linear_model").LogisticRegression().fit(_rows(), CLASSES)
    return _exported(folder, fitted, _rows(), options={"zipmap": False})


def forest(folder: Path) -> Feeds:
    """Labels are numbers."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    fitted = ensemble.RandomForestClassifier(3, max_depth=3, random_state=0).fit(_rows(), np.repeat([3, 5, 7], 20))
    return _exported(folder, fitted, _rows())


def boosting(folder: Path) -> Feeds:
    """Regression by trees, one after another."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    fitted = ensemble.GradientBoostingRegressor(n_estimators=5, max_depth=2, random_state=0).fit(_rows(), numbers(60))
    return _exported(folder, fitted, _rows())


def steps(folder: Path) -> Feeds:
    """A pipeline: scaled, projected, classified by a machine of support vectors with probabilities."""
    make_pipeline = pytest.importorskip("sklearn.pipeline").make_pipeline
    decomposition, preprocessing = (
        pytest.importorskip(f"sklearn.{name}") for name in ("decomposition", "preprocessing")
    )
    svm = pytest.importorskip("sklearn.svm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer releases advise another class
        parts = preprocessing.StandardScaler(), decomposition.PCA(2), svm.SVC(probability=True, random_state=0)
        return _exported(folder, make_pipeline(*parts).fit(_rows(), CLASSES), _rows())


def neighbours(folder: Path) -> Feeds:
    """The nearest neighbours: Scan or CDist, TopK, and a vote."""
    known = pytest.importorskip("sklearn.neighbors").KNeighborsClassifier(3).fit(_rows(), CLASSES)
    return _exported(folder, known, _rows())


def columns(folder: Path) -> Feeds:
    """Two inputs: a column of words, made one-hot, and columns of numbers."""
    skl2onnx = pytest.importorskip("skl2onnx")
    types = pytest.importorskip("skl2onnx.common.data_types")
    compose, linear_model, preprocessing = (
        pytest.importorskip(f"sklearn.{name}") for name in ("compose", "linear_model", "preprocessing")
    )
    table = np.column_stack([CLASSES.astype(object), _rows()[:, :2]])
    encode = [("words", preprocessing.OneHotEncoder(), [0]), ("rest", "passthrough", [1, 2])]
    pipeline = pytest.importorskip("sklearn.pipeline").make_pipeline(
        compose.ColumnTransformer(encode), linear_model.LinearRegression()
    )
    pipeline.fit(table, numbers(60))
    declared = [("word", types.StringTensorType([None, 1]))]
    declared += [(name, types.FloatTensorType([None, 1])) for name in ("size", "age")]
    onnx.save(skl2onnx.to_onnx(pipeline, initial_types=declared), folder / "model.onnx")
    feeds = {"word": CLASSES[::7].astype(object), "size": _rows()[::7, 0], "age": _rows()[::7, 1]}
    return {name: array.reshape(-1, 1) for name, array in feeds.items()}


def text(folder: Path) -> Feeds:
    """Sentences: split into words, counted, weighted, classified."""
    skl2onnx = pytest.importorskip("skl2onnx")
    types = pytest.importorskip("skl2onnx.common.data_types")
    words = pytest.importorskip("sklearn.feature_extraction.text")
    linear_model = pytest.importorskip("sklearn.linear_model")
    said = ["the red board", "a blue board", "red and red", "blue sky", "a red sky", "the blue sea"]
    parts = words.TfidfVectorizer(), linear_model.LogisticRegression()
    fitted = pytest.importorskip("sklearn.pipeline").make_pipeline(*parts).fit(said, [0, 1, 0, 1, 0, 1])
    declared = [("said", types.StringTensorType([None]))]
    options = {words.TfidfVectorizer: {"locale": "C"}}  # any machine has it
    onnx.save(skl2onnx.to_onnx(fitted, initial_types=declared, options=options), folder / "model.onnx")
    return {"said": np.array(said, object)}


def _lightgbm(folder: Path, kind: str, target: Any) -> Feeds:
    lightgbm = pytest.importorskip("lightgbm")
    tools = pytest.importorskip("onnxmltools")
    types = pytest.importorskip("onnxmltools.convert.common.data_types")
    options = {"n_estimators": 3, "num_leaves": 4, "min_child_samples": 1, "n_jobs": 1, "verbosity": -1}
    fitted = getattr(lightgbm, kind)(deterministic=True, **options).fit(_rows(), target)
    model = tools.convert_lightgbm(fitted, initial_types=[("x", types.FloatTensorType([None, 4]))])
    onnx.save(model, folder / "model.onnx")
    return {"x": _rows()[::7]}


def lightgbm_classifier(folder: Path) -> Feeds:
    """Ends in ZipMap."""
    return _lightgbm(folder, "LGBMClassifier", np.repeat([0, 1, 2], 20))


def lightgbm_regressor(folder: Path) -> Feeds:
    """One number for each row."""
    return _lightgbm(folder, "LGBMRegressor", numbers(60))
