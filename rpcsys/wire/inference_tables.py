"""The messages of the Open Inference Protocol over gRPC, and of gRPC's health service, as tables for `protobuf`.

`METHODS` has all methods with their tables. Names in the tables are those of the JSON that the protocol has over HTTP
for the same; a JSON object of it can be encoded as it is.
"""

from __future__ import annotations

from typing import Dict, NamedTuple

from rpcsys.wire.protobuf import (
    BOOL,
    BYTES,
    DOUBLE,
    FLOAT,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
    VIEW,
    MessageTable,
    OneOf,
    enum,
)  # fmt: skip

EMPTY = MessageTable()
_NAMED = MessageTable((1, "name", STRING))
_MODEL = MessageTable((1, "name", STRING), (2, "version", STRING))
_READY = MessageTable((1, "ready", BOOL))

# ---------------------------------------------------------------- calls

PARAMETER = MessageTable(
    (1, "bool_param", OneOf(BOOL)),
    (2, "int64_param", OneOf(INT64)),
    (3, "string_param", OneOf(STRING)),
    (4, "double_param", OneOf(DOUBLE)),
    (5, "uint64_param", OneOf(UINT64)),
)
CONTENTS = MessageTable(
    (1, "bool_contents", [BOOL]),
    (2, "int_contents", [INT32]),
    (3, "int64_contents", [INT64]),
    (4, "uint_contents", [UINT32]),
    (5, "uint64_contents", [UINT64]),
    (6, "fp32_contents", [FLOAT]),
    (7, "fp64_contents", [DOUBLE]),
    (8, "bytes_contents", [BYTES]),
)
#: Its contents stay a view: they are parsed when datatype and shape are known.
TENSOR = MessageTable(
    (1, "name", STRING),
    (2, "datatype", STRING),
    (3, "shape", [INT64]),
    (4, "parameters", {STRING: PARAMETER}),
    (5, "contents", OneOf(VIEW)),
)
_WANTED = MessageTable((1, "name", STRING), (2, "parameters", {STRING: PARAMETER}))
INFER_REQUEST = MessageTable(
    (1, "model_name", STRING),
    (2, "model_version", STRING),
    (3, "id", STRING),
    (4, "parameters", {STRING: PARAMETER}),
    (5, "inputs", [TENSOR]),
    (6, "outputs", [_WANTED]),
    (7, "raw_input_contents", [VIEW]),
)
INFER_RESPONSE = MessageTable(
    (1, "model_name", STRING),
    (2, "model_version", STRING),
    (3, "id", STRING),
    (4, "parameters", {STRING: PARAMETER}),
    (5, "outputs", [TENSOR]),
    (6, "raw_output_contents", [VIEW]),
)
STREAM_RESPONSE = MessageTable((1, "error_message", STRING), (2, "infer_response", INFER_RESPONSE))

# ---------------------------------------------------------------- server and models

_SERVER = MessageTable((1, "name", STRING), (2, "version", STRING), (3, "extensions", [STRING]))
_DECLARED = MessageTable((1, "name", STRING), (2, "datatype", STRING), (3, "shape", [INT64]))
METADATA = MessageTable(
    (1, "name", STRING),
    (2, "versions", [STRING]),
    (3, "platform", STRING),
    (4, "inputs", [_DECLARED]),
    (5, "outputs", [_DECLARED]),
)
_TYPES = "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16"
DATA_TYPE = enum(*(f"TYPE_{name}" for name in _TYPES.split()))
_INPUT = MessageTable((1, "name", STRING), (2, "data_type", DATA_TYPE), (4, "dims", [INT64]))
_OUTPUT = MessageTable((1, "name", STRING), (2, "data_type", DATA_TYPE), (3, "dims", [INT64]))
_VERSIONS = MessageTable(
    (1, "latest", OneOf(MessageTable((1, "num_versions", UINT32)))),
    (2, "all", OneOf(EMPTY)),
    (3, "specific", OneOf(MessageTable((1, "versions", [INT64])))),
)
_BATCHING = MessageTable((1, "preferred_batch_size", [INT32]), (2, "max_queue_delay_microseconds", UINT64))
#: What a model of rpcsys has; a server of another kind says more.
CONFIG = MessageTable(
    (1, "name", STRING),
    (2, "platform", STRING),
    (3, "version_policy", _VERSIONS),
    (4, "max_batch_size", INT32),
    (5, "input", [_INPUT]),
    (6, "output", [_OUTPUT]),
    (11, "dynamic_batching", OneOf(_BATCHING)),
    (17, "backend", STRING),
)

# ---------------------------------------------------------------- statistics

_DURATION = MessageTable((1, "count", UINT64), (2, "ns", UINT64))


def _durations(*names: str) -> MessageTable:
    return MessageTable(*((number, name, _DURATION) for number, name in enumerate(names, 1)))


_COMPUTE = ("compute_input", "compute_infer", "compute_output")
_BATCH = MessageTable((1, "batch_size", UINT64), *((at, name, _DURATION) for at, name in enumerate(_COMPUTE, 2)))
_MEMORY = MessageTable((1, "type", STRING), (2, "id", INT64), (3, "byte_size", UINT64))
_STATISTICS = MessageTable(
    (1, "name", STRING),
    (2, "version", STRING),
    (3, "last_inference", UINT64),
    (4, "inference_count", UINT64),
    (5, "execution_count", UINT64),
    (6, "inference_stats", _durations("success", "fail", "queue", *_COMPUTE, "cache_hit", "cache_miss")),
    (7, "batch_stats", [_BATCH]),
    (8, "memory_usage", [_MEMORY]),
    (9, "response_stats", {STRING: _durations(*_COMPUTE[1:], "success", "fail", "empty_response", "cancel")}),
)

# ---------------------------------------------------------------- repository and shared memory

_CONTROL_PARAMETER = MessageTable(
    (1, "bool_param", OneOf(BOOL)),
    (2, "int64_param", OneOf(INT64)),
    (3, "string_param", OneOf(STRING)),
    (4, "bytes_param", OneOf(BYTES)),
)
#: KServe's stubs have the model's name in field 1, and nothing else.
_CONTROL = MessageTable(
    (1, "repository_name", STRING), (2, "model_name", STRING), (3, "parameters", {STRING: _CONTROL_PARAMETER})
)
_LISTED = MessageTable((1, "name", STRING), (2, "version", STRING), (3, "state", STRING), (4, "reason", STRING))
_SYSTEM_REGION = MessageTable((1, "name", STRING), (2, "key", STRING), (3, "offset", UINT64), (4, "byte_size", UINT64))
_CUDA_REGION = MessageTable((1, "name", STRING), (2, "device_id", UINT64), (3, "byte_size", UINT64))
_CUDA_REGISTER = MessageTable(
    (1, "name", STRING), (2, "raw_handle", BYTES), (3, "device_id", INT64), (4, "byte_size", UINT64)
)


def _settings(value: MessageTable) -> MessageTable:
    return MessageTable((1, "settings", {STRING: value}))


_LOG = MessageTable(
    (1, "bool_param", OneOf(BOOL)), (2, "uint32_param", OneOf(UINT32)), (3, "string_param", OneOf(STRING))
)
_TRACE = MessageTable((1, "value", [STRING]))

# ---------------------------------------------------------------- methods


class Method(NamedTuple):
    """The tables of a method's request and answer."""

    request: MessageTable
    response: MessageTable


INFERENCE = "/inference.GRPCInferenceService/"
HEALTH = "/grpc.health.v1.Health/"
HEALTH_STATUS = enum("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")

_INFERENCE_METHODS: Dict[str, Method] = {
    "ServerLive": Method(EMPTY, MessageTable((1, "live", BOOL))),
    "ServerReady": Method(EMPTY, _READY),
    "ModelReady": Method(_MODEL, _READY),
    "ServerMetadata": Method(EMPTY, _SERVER),
    "ModelMetadata": Method(_MODEL, METADATA),
    "ModelInfer": Method(INFER_REQUEST, INFER_RESPONSE),
    "ModelStreamInfer": Method(INFER_REQUEST, STREAM_RESPONSE),
    "ModelConfig": Method(_MODEL, MessageTable((1, "config", CONFIG))),
    "ModelStatistics": Method(_MODEL, MessageTable((1, "model_stats", [_STATISTICS]))),
    "RepositoryIndex": Method(
        MessageTable((1, "repository_name", STRING), (2, "ready", BOOL)), MessageTable((1, "models", [_LISTED]))
    ),
    "RepositoryModelLoad": Method(_CONTROL, EMPTY),
    "RepositoryModelUnload": Method(_CONTROL, EMPTY),
    "SystemSharedMemoryStatus": Method(_NAMED, MessageTable((1, "regions", {STRING: _SYSTEM_REGION}))),
    "SystemSharedMemoryRegister": Method(_SYSTEM_REGION, EMPTY),
    "SystemSharedMemoryUnregister": Method(_NAMED, EMPTY),
    "CudaSharedMemoryStatus": Method(_NAMED, MessageTable((1, "regions", {STRING: _CUDA_REGION}))),
    "CudaSharedMemoryRegister": Method(_CUDA_REGISTER, EMPTY),
    "CudaSharedMemoryUnregister": Method(_NAMED, EMPTY),
    "TraceSetting": Method(
        MessageTable((1, "settings", {STRING: _TRACE}), (2, "model_name", STRING)), _settings(_TRACE)
    ),
    "LogSettings": Method(_settings(_LOG), _settings(_LOG)),
}
_HEALTH_STATUS = MessageTable((1, "status", HEALTH_STATUS))

#: "/inference.GRPCInferenceService/ServerLive" -> its tables, for all methods.
METHODS: Dict[str, Method] = {
    **{INFERENCE + name: method for name, method in _INFERENCE_METHODS.items()},
    **{HEALTH + name: Method(MessageTable((1, "service", STRING)), _HEALTH_STATUS) for name in ("Check", "Watch")},
}
