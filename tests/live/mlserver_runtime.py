"""A runtime of MLServer for ONNX files, which it has none for: loaded by MLServer, in its own environment."""

from __future__ import annotations

import asyncio

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor
from mlserver.utils import get_model_uri

DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(float)": "FP32",
    "tensor(float16)": "FP16",
    "tensor(double)": "FP64",
    **{f"tensor({sign}int{bits})": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class OnnxModel(MLModel):
    """The file that ``parameters.uri`` names, in onnxruntime with one thread a call."""

    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = await get_model_uri(self.settings, wellknown_filenames=["model.onnx"])
        self._session = onnxruntime.InferenceSession(path, options)
        self.inputs = [_described(value) for value in self._session.get_inputs()]
        self.outputs = [_described(value) for value in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        wanted = [each.name for each in payload.outputs or self.outputs]
        arrays = await asyncio.get_running_loop().run_in_executor(None, self._session.run, wanted, feeds)
        outputs = [NumpyCodec.encode_output(name, array) for name, array in zip(wanted, arrays, strict=True)]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)


def _described(value) -> MetadataTensor:
    shape = [extent if isinstance(extent, int) else -1 for extent in value.shape]
    return MetadataTensor(name=value.name, datatype=DATATYPES[value.type], shape=shape)
