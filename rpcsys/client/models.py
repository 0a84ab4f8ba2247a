"""Sends a model with all files that it needs: those with its weights go first, the model last."""

from __future__ import annotations

import os
import posixpath
from typing import Any, Callable, List, NamedTuple

from rpcsys.client.files import Report, Source
from rpcsys.errors import UsageError

external: Any
try:
    from rpcsys.module import external
except ImportError:  # not in the device tier: a board sends a model as one file
    external = None


class ModelFile(NamedTuple):
    """A file to send."""

    source: Source
    target: str  # its name on the device
    size: int


def parts(source: Source, name: str) -> List[ModelFile]:
    """What to send of a model that is to be called ``name``, the model itself last.

    Raises `UsageError` for a file that the model names and that cannot be sent.
    """
    if not isinstance(source, (str, os.PathLike)):
        if external is not None and name.endswith((".onnx", ".xml")):
            external.check_alone(source, name)
        return [ModelFile(source, name, len(source))]
    if external is None:
        return [ModelFile(source, name, os.path.getsize(source))]
    found = []
    for data in external.files_of(source):
        target = posixpath.join(posixpath.dirname(name), posixpath.normpath(data.location))
        if name.endswith(".xml"):  # OpenVINO looks for the weights under the model's own name
            target = posixpath.splitext(name)[0] + ".bin"
        if target != posixpath.normpath(name):
            found.append(ModelFile(data.path, target, os.path.getsize(data.path)))
        elif not os.path.samefile(data.path, source):
            raise UsageError(f"the model and the file {data.location!r} of its weights would both be {name} there")
    return [*found, ModelFile(source, name, os.path.getsize(source))]


def send(upload: Callable[..., str], wanted: List[ModelFile], progress: Report) -> str:
    """Upload the parts with `Session.upload`; returns the model's name there. ``progress`` counts all their bytes."""
    total, done, name = sum(part.size for part in wanted), 0, ""
    for part in wanted:
        name = upload(part.source, part.target, progress=_beginning_at(done, total, progress))
        done += part.size
    return name


def _beginning_at(before: int, total: int, progress: Report) -> Report:
    """The progress of one file as that of all, of which ``before`` bytes are done."""
    if progress is None:
        return None
    report = progress
    return lambda done, _: report(before + done, total)
