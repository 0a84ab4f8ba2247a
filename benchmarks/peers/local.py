"""onnxruntime in this process: what an inference costs before any wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnxruntime

from benchmarks.models import model_input
from benchmarks.peers.subject import Subject, Trial


class LocalOnnxruntime(Subject):
    @contextmanager
    def inference(self, path: str) -> Iterator[Trial]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # one core is all that either side has
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        feed = {session.get_inputs()[0].name: model_input()}
        yield Trial(lambda: session.run(None, feed))
