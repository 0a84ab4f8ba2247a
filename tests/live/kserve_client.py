"""KServe's clients at an inference server: run in KServe's environment with the addresses of HTTP and of gRPC."""

from __future__ import annotations

import asyncio
import sys

import httpx
import numpy as np
from grpc.aio import AioRpcError
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig


def request(binary: bool) -> InferRequest:
    """A request of NVIDIA's example model."""
    inputs = []
    for name, array in zip(("INPUT0", "INPUT1"), arrays(), strict=True):
        inputs.append(InferInput(name, list(array.shape), "INT32"))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    return InferRequest("simple", inputs, request_id="7", parameters={"binary_data_output": binary})


def arrays() -> tuple[np.ndarray, np.ndarray]:
    first = np.arange(16, dtype=np.int32).reshape(1, 16)
    return first, np.ones_like(first)


def check(response) -> None:
    first, second = arrays()
    found = {output.name: output.as_numpy() for output in response.outputs}
    assert np.array_equal(found["OUTPUT0"], first + second)
    assert np.array_equal(found["OUTPUT1"], first - second)
    assert (response.id, response.model_name) == ("7", "simple")


async def rest(where: str) -> None:
    client, base = InferenceRESTClient(RESTConfig(protocol="v2")), f"http://{where}"
    assert await client.is_server_live(base)
    assert await client.is_server_ready(base)
    assert await client.is_model_ready(base, "simple")
    assert not await client.is_model_ready(base, "nobody")
    for binary in (True, False):
        check(await client.infer(base, request(binary), model_name="simple"))
    try:
        await client.infer(base, request(True), model_name="nobody")
        raise AssertionError("an unknown model is called")
    except httpx.HTTPStatusError as error:
        assert "Request for unknown model: 'nobody' is not found" in str(error)  # noqa: PT017 - no pytest there
    await client.close()


async def rpc(where: str) -> None:
    client = InferenceGRPCClient(where)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("simple")
    for binary in (True, False):
        check(await client.infer(request(binary)))
    unknown = request(True)
    unknown.model_name = "nobody"
    try:
        await client.infer(unknown)
        raise AssertionError("an unknown model is called")
    except AioRpcError as error:
        assert error.code().name == "NOT_FOUND"  # noqa: PT017 - no pytest there
    await client.close()


async def main() -> None:
    http, grpc = sys.argv[1:]
    await rest(http)
    await rpc(grpc)
    print("used")


asyncio.run(main())
