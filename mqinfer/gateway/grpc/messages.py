"""Messages of the Open Inference Protocol's gRPC service, package `inference`, by their field numbers.

Numbers are those of Triton's `grpc_service.proto` and `model_config.proto`
(https://github.com/triton-inference-server/common/tree/main/protobuf). What only KServe's `grpc_predict_v2.proto` has
is there too: `ModelMetadataResponse.properties`, and the fields of the replies to load and unload. Of a model's
configuration the table has what the gateway can fill in.

Two fields differ on purpose, with the same bytes on the wire: the `contents` of an input, a message there, are its
bytes here, which `contents` reads without a copy.
"""

from __future__ import annotations

from mqinfer.gateway.protobuf import Table, make_messages

__all__ = ["HEALTH", "MESSAGES"]

_PARAMETER = (
    "oneof parameter_choice: bool bool_param = 1",
    "oneof parameter_choice: int64 int64_param = 2",
    "oneof parameter_choice: string string_param = 3",
)
_LOG_SETTING = (*_PARAMETER[:1], "oneof parameter_choice: uint32 uint32_param = 2", *_PARAMETER[2:])
_NAME_AND_VERSION = ("string name = 1", "string version = 2")

_INFER: Table = {
    "InferParameter": (
        *_PARAMETER,
        "oneof parameter_choice: double double_param = 4",
        "oneof parameter_choice: uint64 uint64_param = 5",
    ),
    "ModelInferRequest": (
        "string model_name = 1",
        "string model_version = 2",
        "string id = 3",
        "map<string, InferParameter> parameters = 4",
        "repeated ModelInferRequest.InferInputTensor inputs = 5",
        "repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6",
        "repeated bytes raw_input_contents = 7",
    ),
    "ModelInferRequest.InferInputTensor": (
        "string name = 1",
        "string datatype = 2",
        "repeated int64 shape = 3",
        "map<string, InferParameter> parameters = 4",
        "repeated bytes contents = 5",
    ),
    "ModelInferRequest.InferRequestedOutputTensor": (
        "string name = 1",
        "map<string, InferParameter> parameters = 2",
    ),
    "ModelInferResponse": (
        "string model_name = 1",
        "string model_version = 2",
        "string id = 3",
        "map<string, InferParameter> parameters = 4",
        "repeated ModelInferResponse.InferOutputTensor outputs = 5",
        "repeated bytes raw_output_contents = 6",
    ),
    "ModelInferResponse.InferOutputTensor": (
        "string name = 1",
        "string datatype = 2",
        "repeated int64 shape = 3",
        "map<string, InferParameter> parameters = 4",
    ),
    "ModelStreamInferResponse": (
        "string error_message = 1",
        "ModelInferResponse infer_response = 2",
    ),
}
_METADATA: Table = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("bool live = 1",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("bool ready = 1",),
    "ModelReadyRequest": _NAME_AND_VERSION,
    "ModelReadyResponse": ("bool ready = 1",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": (*_NAME_AND_VERSION, "repeated string extensions = 3"),
    "ModelMetadataRequest": _NAME_AND_VERSION,
    "ModelMetadataResponse": (
        "string name = 1",
        "repeated string versions = 2",
        "string platform = 3",
        "repeated ModelMetadataResponse.TensorMetadata inputs = 4",
        "repeated ModelMetadataResponse.TensorMetadata outputs = 5",
        "map<string, string> properties = 6",
    ),
    "ModelMetadataResponse.TensorMetadata": ("string name = 1", "string datatype = 2", "repeated int64 shape = 3"),
}
_STATISTICS: Table = {
    "ModelStatisticsRequest": _NAME_AND_VERSION,
    "ModelStatisticsResponse": ("repeated ModelStatistics model_stats = 1",),
    "StatisticDuration": ("uint64 count = 1", "uint64 ns = 2"),
    "InferStatistics": tuple(
        f"StatisticDuration {name} = {number}"
        for number, name in enumerate(
            (
                "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit",
                "cache_miss",
            ),
            1,
        )
    ),
    "InferBatchStatistics": (
        "uint64 batch_size = 1",
        "StatisticDuration compute_input = 2",
        "StatisticDuration compute_infer = 3",
        "StatisticDuration compute_output = 4",
    ),
    "MemoryUsage": ("string type = 1", "int64 id = 2", "uint64 byte_size = 3"),
    "ModelStatistics": (
        *_NAME_AND_VERSION,
        "uint64 last_inference = 3",
        "uint64 inference_count = 4",
        "uint64 execution_count = 5",
        "InferStatistics inference_stats = 6",
        "repeated InferBatchStatistics batch_stats = 7",
        "repeated MemoryUsage memory_usage = 8",
    ),
}  # fmt: skip
_REPOSITORY: Table = {
    "ModelRepositoryParameter": (*_PARAMETER, "oneof parameter_choice: bytes bytes_param = 4"),
    "RepositoryIndexRequest": ("string repository_name = 1", "bool ready = 2"),
    "RepositoryIndexResponse": ("repeated RepositoryIndexResponse.ModelIndex models = 1",),
    "RepositoryIndexResponse.ModelIndex": (*_NAME_AND_VERSION, "string state = 3", "string reason = 4"),
    "RepositoryModelLoadRequest": (
        "string repository_name = 1",
        "string model_name = 2",
        "map<string, ModelRepositoryParameter> parameters = 3",
    ),
    "RepositoryModelLoadResponse": ("string model_name = 1", "bool isLoaded = 2"),
    "RepositoryModelUnloadRequest": (
        "string repository_name = 1",
        "string model_name = 2",
        "map<string, ModelRepositoryParameter> parameters = 3",
    ),
    "RepositoryModelUnloadResponse": ("string model_name = 1", "bool isUnloaded = 2"),
}
_SHARED_MEMORY: Table = {
    "SystemSharedMemoryStatusRequest": ("string name = 1",),
    "SystemSharedMemoryStatusResponse": (
        "map<string, SystemSharedMemoryStatusResponse.RegionStatus> regions = 1",
    ),
    "SystemSharedMemoryStatusResponse.RegionStatus": (
        "string name = 1", "string key = 2", "uint64 offset = 3", "uint64 byte_size = 4",
    ),
    "SystemSharedMemoryRegisterRequest": (
        "string name = 1", "string key = 2", "uint64 offset = 3", "uint64 byte_size = 4",
    ),
    "SystemSharedMemoryRegisterResponse": (),
    "SystemSharedMemoryUnregisterRequest": ("string name = 1",),
    "SystemSharedMemoryUnregisterResponse": (),
    "CudaSharedMemoryStatusRequest": ("string name = 1",),
    "CudaSharedMemoryStatusResponse": ("map<string, CudaSharedMemoryStatusResponse.RegionStatus> regions = 1",),
    "CudaSharedMemoryStatusResponse.RegionStatus": (
        "string name = 1", "uint64 device_id = 2", "uint64 byte_size = 3",
    ),
    "CudaSharedMemoryRegisterRequest": (
        "string name = 1", "bytes raw_handle = 2", "int64 device_id = 3", "uint64 byte_size = 4",
    ),
    "CudaSharedMemoryRegisterResponse": (),
    "CudaSharedMemoryUnregisterRequest": ("string name = 1",),
    "CudaSharedMemoryUnregisterResponse": (),
}  # fmt: skip
_SETTINGS: Table = {
    "TraceSettingRequest": (
        "map<string, TraceSettingRequest.SettingValue> settings = 1",
        "string model_name = 2",
    ),
    "TraceSettingRequest.SettingValue": ("repeated string value = 1",),
    "TraceSettingResponse": ("map<string, TraceSettingResponse.SettingValue> settings = 1",),
    "TraceSettingResponse.SettingValue": ("repeated string value = 1",),
    "LogSettingsRequest": ("map<string, LogSettingsRequest.SettingValue> settings = 1",),
    "LogSettingsRequest.SettingValue": _LOG_SETTING,
    "LogSettingsResponse": ("map<string, LogSettingsResponse.SettingValue> settings = 1",),
    "LogSettingsResponse.SettingValue": _LOG_SETTING,
}
_CONFIG: Table = {
    "ModelConfigRequest": _NAME_AND_VERSION,
    "ModelConfigResponse": ("ModelConfig config = 1",),
    "ModelConfig": (
        "string name = 1",
        "string platform = 2",
        "string backend = 17",
        "ModelVersionPolicy version_policy = 3",
        "int32 max_batch_size = 4",
        "repeated ModelInput input = 5",
        "repeated ModelOutput output = 6",
        "ModelOptimizationPolicy optimization = 12",
        "oneof scheduling_choice: ModelDynamicBatching dynamic_batching = 11",
        "oneof scheduling_choice: ModelEnsembling ensemble_scheduling = 15",
        "repeated ModelInstanceGroup instance_group = 7",
        "string default_model_filename = 8",
        "map<string, ModelParameter> parameters = 14",
        "repeated ModelWarmup model_warmup = 16",
    ),
    "ModelVersionPolicy": (
        "oneof policy_choice: ModelVersionPolicy.Latest latest = 1",
        "oneof policy_choice: ModelVersionPolicy.All all = 2",
        "oneof policy_choice: ModelVersionPolicy.Specific specific = 3",
    ),
    "ModelVersionPolicy.Latest": ("uint32 num_versions = 1",),
    "ModelVersionPolicy.All": (),
    "ModelVersionPolicy.Specific": ("repeated int64 versions = 1",),
    "ModelTensorReshape": ("repeated int64 shape = 1",),
    "ModelInput": (
        "string name = 1",
        "DataType data_type = 2",
        "InputFormat format = 3",
        "repeated int64 dims = 4",
        "ModelTensorReshape reshape = 5",
        "bool optional = 8",
    ),
    "ModelOutput": (
        "string name = 1",
        "DataType data_type = 2",
        "repeated int64 dims = 3",
        "ModelTensorReshape reshape = 5",
        "string label_filename = 4",
    ),
    "ModelOptimizationPolicy": ("ModelOptimizationPolicy.ExecutionAccelerators execution_accelerators = 4",),
    "ModelOptimizationPolicy.ExecutionAccelerators": (
        "repeated ModelOptimizationPolicy.ExecutionAccelerators.Accelerator gpu_execution_accelerator = 1",
        "repeated ModelOptimizationPolicy.ExecutionAccelerators.Accelerator cpu_execution_accelerator = 2",
    ),
    "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator": (
        "string name = 1",
        "map<string, string> parameters = 2",
    ),
    "ModelQueuePolicy": (
        "TimeoutAction timeout_action = 1",
        "uint64 default_timeout_microseconds = 2",
        "bool allow_timeout_override = 3",
        "uint32 max_queue_size = 4",
    ),
    "ModelDynamicBatching": (
        "repeated int32 preferred_batch_size = 1",
        "uint64 max_queue_delay_microseconds = 2",
        "bool preserve_ordering = 3",
        "uint64 priority_levels = 4",
        "uint64 default_priority_level = 5",
        "ModelQueuePolicy default_queue_policy = 6",
        "map<uint64, ModelQueuePolicy> priority_queue_policy = 7",
    ),
    "ModelEnsembling": ("repeated ModelEnsembling.Step step = 1",),
    "ModelEnsembling.Step": (
        "string model_name = 1",
        "int64 model_version = 2",
        "map<string, string> input_map = 3",
        "map<string, string> output_map = 4",
    ),
    "ModelInstanceGroup": (
        "string name = 1",
        "InstanceKind kind = 4",
        "int32 count = 2",
        "repeated int32 gpus = 3",
    ),
    "ModelParameter": ("string string_value = 1",),
    "ModelWarmup": (
        "string name = 1",
        "uint32 batch_size = 2",
        "map<string, ModelWarmup.Input> inputs = 3",
        "uint32 count = 4",
    ),
    "ModelWarmup.Input": (
        "DataType data_type = 1",
        "repeated int64 dims = 2",
        "oneof input_data_type: bool zero_data = 3",
        "oneof input_data_type: bool random_data = 4",
        "oneof input_data_type: string input_data_file = 5",
    ),
}


def _numbered(*names: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


_ENUMS = {
    "DataType": _numbered(
        "TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8",
        "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16",
    ),
    "InputFormat": _numbered("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"),
    "InstanceKind": _numbered("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"),
    "TimeoutAction": _numbered("REJECT", "DELAY"),
}  # fmt: skip

MESSAGES = make_messages(
    "inference",
    {**_INFER, **_METADATA, **_STATISTICS, **_REPOSITORY, **_SHARED_MEMORY, **_SETTINGS, **_CONFIG},
    _ENUMS,
)
"""Classes by name."""

HEALTH = make_messages(
    "grpc.health.v1",
    {"HealthCheckRequest": ("string service = 1",), "HealthCheckResponse": ("ServingStatus status = 1",)},
    {"ServingStatus": _numbered("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")},
)
"""Classes of `grpc.health.v1`."""
