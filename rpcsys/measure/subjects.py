"""What is compared: a model with the settings it runs with, written as ``model.onnx@device=opencl:0,threads=2``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpcsys.client import RemoteModule, Session
from rpcsys.client.remote import RemoteFunction
from rpcsys.errors import NotSupported, UsageError
from rpcsys.graph import samples
from rpcsys.graph.samples import Arrays
from rpcsys.module import declared, external
from rpcsys.wire import device_names

MAX_SUBJECTS = 20
_FORM = "write MODEL, or MODEL@device=opencl:0,threads=2,function=NAME"
_FUNCTION = "function"
_SETTINGS = ("device", "threads", _FUNCTION)


@dataclass(frozen=True)
class Subject:
    """A model's file, and how it runs.

    ``settings``: those of `Session.load_module` by name (``device``, ``threads``). ``function``: which of the model's
    functions is measured.
    """

    path: Path
    function: str = "main"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The subject as it is written."""
        named = {**self.settings, **({_FUNCTION: self.function} if self.function != "main" else {})}
        return str(self.path) + ("@" + ",".join(f"{name}={value}" for name, value in named.items()) if named else "")


class Uploaded:
    """A subject on one board, in the ``folder`` of its session: it is sent once, and loaded any number of times."""

    def __init__(self, session: Session, subject: Subject, folder: str) -> None:
        self.function = subject.function
        self._session = session
        self._subject = subject
        self._name = f"{folder}/{subject.path.name}"
        self._sent = False

    def load(self) -> tuple[RemoteModule, RemoteFunction]:
        """Load it; the module, and its function. Raises what `Session.load_module` raises, and `NotSupported`."""
        known = inspect.signature(Session.load_module).parameters
        for name in self._subject.settings:
            if name not in known:
                raise NotSupported(f"{self._subject.text}: this version cannot set {name}; leave it out")
        where = self._name if self._sent else self._subject.path
        model = self._session.load_module(where, name=self._name, **self._subject.settings)
        self._sent = True
        return model, model[self.function]


def parse(subject: str | os.PathLike[str] | Subject) -> Subject:
    """A subject from its text. Raises `UsageError`."""
    if isinstance(subject, Subject):
        return subject
    text = os.fspath(subject)
    path, at, settings = text.rpartition("@")
    if not at or Path(text).is_file() or "=" not in settings:
        return Subject(Path(text))
    found: dict[str, Any] = {}
    for each in settings.split(","):
        name, equals, value = each.partition("=")
        if name not in _SETTINGS or not (equals and value) or name in found:
            raise UsageError(f"{text!r}: {each!r} is no setting of a model; {_FORM}")
        found[name] = _threads(text, value) if name == "threads" else value
    function = found.pop(_FUNCTION, "main")
    return Subject(Path(path), function, found)


def _threads(text: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:6]) <= 1024 and len(value) < 6):
        raise UsageError(f"{text!r}: threads is a whole number from 1 to 1024, not {value!r}; check it")
    return int(value)


def check_file(subject: Subject, given: Arrays | None) -> None:
    """Raise `UsageError` for a subject without a file, or with one that does not take the arrays (None: random)."""
    if not subject.path.is_file():
        raise UsageError(f"no such model: {subject.path}; check the path")
    if "device" in subject.settings:
        device_names.parse(subject.settings["device"])
    external.files_of(subject.path)
    if subject.function != "main":
        return
    if given is not None:
        declared.check_inputs(subject.path, given)
        return
    needed = [each for each in declared.inputs_of(subject.path) or () if each.needed and each.dtype]
    samples.check_random([each._asdict() for each in needed])


def names(subjects: Sequence[Subject]) -> list[str]:
    """A short name for each subject: its file's name and settings, with as much of the folder as tells them apart.

    A subject that stands there twice has its number, too.
    """
    texts = [subject.text for subject in subjects]
    short = [text[len(str(subject.path.parent)) + 1 :] if subject.path.parent != Path() else text
             for text, subject in zip(texts, subjects, strict=True)]  # fmt: skip
    chosen = short if len(set(short)) == len(set(texts)) else texts
    return [
        f"{name} (no. {chosen[: place + 1].count(name)})" if chosen.count(name) > 1 else name
        for place, name in enumerate(chosen)
    ]


def arguments(model: RemoteModule, function: str, given: Arrays | None) -> list[Any]:
    """The arguments of a subject's function: the ``given`` arrays, else random ones with a fixed seed.

    By name where the model has names, else in the order in which they are given. Raises `UsageError`.
    """
    if function != "main" or not model.inputs:
        return list((given or {}).values())
    feed = samples.random_inputs(model.inputs) if given is None else given
    return [feed[spec["name"]] for spec in model.inputs if spec["name"] in feed]


def difference(first: Any, second: Any) -> str:
    """How the results of two subjects differ, for a person; "" where they are equal."""
    import numpy as np

    results = [list(each) if isinstance(each, (list, tuple)) else [each] for each in (first, second)]
    if len(results[0]) != len(results[1]):
        return f"has {len(results[1])} outputs, not {len(results[0])}"
    largest = 0.0
    for place, (one, other) in enumerate(zip(*results, strict=True)):
        arrays = [np.asarray(each) for each in (one, other)]
        if arrays[0].shape != arrays[1].shape:
            return f"output {place} has shape {list(arrays[1].shape)}, not {list(arrays[0].shape)}"
        if any(array.dtype.kind not in "fiub" for array in arrays):
            if not np.array_equal(arrays[0], arrays[1]):
                return f"output {place} differs"
            continue
        numbers = [array.astype("f8") for array in arrays]
        equal = (numbers[0] == numbers[1]) | (np.isnan(numbers[0]) & np.isnan(numbers[1]))
        apart = np.abs(np.where(equal, 0.0, numbers[0] - numbers[1]))
        if np.isnan(apart).any():
            return f"output {place} differs in what is not a number"
        largest = max(largest, float(np.max(apart, initial=0.0)))
    return f"outputs differ by at most {largest:.2g}" if largest else ""
