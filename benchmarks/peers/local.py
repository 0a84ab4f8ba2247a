"""onnxruntime in this process: the cost of an inference without a connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnxruntime

from benchmarks.models import model_input, written_resnet50
from benchmarks.peers.subject import Subject, Trial


class LocalOnnxruntime(Subject):
    @contextmanager
    def inference(self, path: str) -> Iterator[Trial]:
        session = _session(path)
        feed = {session.get_inputs()[0].name: model_input()}
        yield Trial(lambda: session.run(None, feed))

    @contextmanager
    def network(self, path: str) -> Iterator[Trial]:
        """One run of the network at ``path``."""
        with self.inference(str(written_resnet50(path))) as trial:
            yield trial

    @contextmanager
    def load_network(self, path: str) -> Iterator[Trial]:
        """Load the network from its ONNX file."""
        model = str(written_resnet50(path))
        yield Trial(lambda: _session(model))


def _session(path: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # both sides have one core
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
