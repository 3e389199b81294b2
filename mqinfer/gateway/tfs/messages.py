"""TensorFlow Serving's messages (tensorflow/serving `apis/*.proto`, tensorflow `core/framework/*.proto`).

Messages of the package `tensorflow` are made in `tensorflow.serving` too: names of packages are not on the wire. The
values of a tensor are declared as the bytes that packed fields are on the wire, so that no Python object is made of
each; `unpacked` reads the form that is legal and rare. `Any` and `Int64Value` are Google's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from mqinfer.gateway.grpc.wire import DELIMITED, fields
from mqinfer.gateway.protobuf import Table, make_messages
from mqinfer.protocol.datatypes import ITEM_BYTES, Datatype
from mqinfer.protocol.errors import InvalidRequest, LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS

__all__ = ["SIGNATURE_DEF_URL", "VALUES", "messages", "parse"]

SIGNATURE_DEF_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"

VALUES = {
    "float_val": ("float", 5),
    "double_val": ("double", 6),
    "int_val": ("int32", 7),
    "int64_val": ("int64", 10),
    "bool_val": ("bool", 11),
    "half_val": ("int32", 13),
    "uint32_val": ("uint32", 16),
    "uint64_val": ("uint64", 17),
}
"""Types and numbers of the fields of a TensorProto for numbers; strings are in `string_val`."""

_MOST_FIELDS = DEFAULT_LIMITS.payload_bytes // ITEM_BYTES[Datatype.BYTES]
"""Fields of a message and those in it: as many as a request may hold strings. Protobuf makes objects of two bytes."""
_SMALL = 64 << 10
"""Bytes of messages whose fields need not be counted."""

_TENSOR = (
    "int32 dtype = 1",
    "TensorShapeProto tensor_shape = 2",
    "int32 version_number = 3",
    "bytes tensor_content = 4",
    "repeated bytes string_val = 8",
)
_REQUESTS: Table = {
    "Int64Value": ["int64 value = 1"],
    "ModelSpec": [
        "string name = 1",
        "oneof version_choice: Int64Value version = 2",
        "string signature_name = 3",
        "oneof version_choice: string version_label = 4",
    ],
    "TensorShapeProto.Dim": ["int64 size = 1", "string name = 2"],
    "PredictRequest": [
        "ModelSpec model_spec = 1",
        "map<string, TensorProto> inputs = 2",
        "repeated string output_filter = 3",
    ],
}
_OTHERS: Table = {
    "PredictResponse": ["map<string, TensorProto> outputs = 1", "ModelSpec model_spec = 2"],
    # Examples stay serialised, as the model takes them.
    "ExampleList": ["repeated bytes examples = 1"],
    "ExampleListWithContext": ["repeated bytes examples = 1", "bytes context = 2"],
    "Input": [
        "oneof kind: ExampleList example_list = 1",
        "oneof kind: ExampleListWithContext example_list_with_context = 2",
    ],
    "BytesList": ["repeated bytes value = 1"],
    "FloatList": ["repeated float value = 1"],
    "Int64List": ["repeated int64 value = 1"],
    "Feature": [
        "oneof kind: BytesList bytes_list = 1",
        "oneof kind: FloatList float_list = 2",
        "oneof kind: Int64List int64_list = 3",
    ],
    "Features": ["map<string, Feature> feature = 1"],
    "Example": ["Features features = 1"],
    "ClassificationRequest": ["ModelSpec model_spec = 1", "Input input = 2"],
    "Class": ["string label = 1", "float score = 2"],
    "Classifications": ["repeated Class classes = 1"],
    "ClassificationResult": ["repeated Classifications classifications = 1"],
    "ClassificationResponse": ["ClassificationResult result = 1", "ModelSpec model_spec = 2"],
    "RegressionRequest": ["ModelSpec model_spec = 1", "Input input = 2"],
    "Regression": ["float value = 1"],
    "RegressionResult": ["repeated Regression regressions = 1"],
    "RegressionResponse": ["RegressionResult result = 1", "ModelSpec model_spec = 2"],
    "InferenceTask": ["ModelSpec model_spec = 1", "string method_name = 2"],
    "MultiInferenceRequest": ["repeated InferenceTask tasks = 1", "Input input = 2"],
    "InferenceResult": [
        "ModelSpec model_spec = 1",
        "oneof result: ClassificationResult classification_result = 2",
        "oneof result: RegressionResult regression_result = 3",
    ],
    "MultiInferenceResponse": ["repeated InferenceResult results = 1"],
    "TensorInfo": ["string name = 1", "int32 dtype = 2", "TensorShapeProto tensor_shape = 3"],
    "SignatureDef": [
        "map<string, TensorInfo> inputs = 1",
        "map<string, TensorInfo> outputs = 2",
        "string method_name = 3",
    ],
    "SignatureDefMap": ["map<string, SignatureDef> signature_def = 1"],
    "Any": ["string type_url = 1", "bytes value = 2"],
    "GetModelMetadataRequest": ["ModelSpec model_spec = 1", "repeated string metadata_field = 2"],
    "GetModelMetadataResponse": ["ModelSpec model_spec = 1", "map<string, Any> metadata = 2"],
    "GetModelStatusRequest": ["ModelSpec model_spec = 1"],
    "StatusProto": ["int32 error_code = 1", "string error_message = 2"],
    "ModelVersionStatus": ["int64 version = 1", "int32 state = 2", "StatusProto status = 3"],
    "GetModelStatusResponse": ["repeated ModelVersionStatus model_version_status = 1"],
}


@cache
def messages() -> dict[str, Any]:
    """Return the classes of the messages by name.

    Raises:
        MissingExtra: protobuf is not installed.
    """
    packed = [f"repeated bytes {name} = {number}" for name, (_, number) in VALUES.items()]
    return make_messages("tensorflow.serving", {**_with_tensors(packed), **_OTHERS})


@cache
def _unpacked() -> dict[str, Any]:
    values = [f"repeated {kind} {name} = {number}" for name, (kind, number) in VALUES.items()]
    return make_messages("tensorflow.serving", _with_tensors(values))


def _with_tensors(values: list[str]) -> dict[str, Any]:
    shape = {"TensorShapeProto": ["repeated TensorShapeProto.Dim dim = 2", "bool unknown_rank = 3"]}
    return {**shape, **_REQUESTS, "TensorProto": [*_TENSOR, *values]}


def parse(kind: str, data: bytes) -> Any:
    """Return a message of bytes.

    Args:
        kind: Its name, such as `PredictRequest`.
        data: As received.

    Raises:
        InvalidRequest: They are not such a message.
        LimitExceeded: It has too many fields.
    """
    from google.protobuf.message import DecodeError

    if len(data) > _SMALL:
        _check_fields(memoryview(data), messages()[kind].DESCRIPTOR, _MOST_FIELDS)
    try:
        message = messages()[kind].FromString(data)
        if kind == "PredictRequest" and any(map(_has_unpacked, message.inputs.values())):
            message = messages()[kind].FromString(_unpacked()[kind].FromString(data).SerializeToString())
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not a {kind}: {error}") from error
    return message


def _check_fields(view: memoryview, descriptor: Any, room: int) -> int:
    """Return how many more fields there may be after those of a message and of the messages in it."""
    inner = _inner(descriptor)
    for number, kind, _, start, end in fields(view):
        room -= 1
        if room < 0:
            raise LimitExceeded(f"the request has more than {_MOST_FIELDS} strings and other fields; send less at once")
        if kind == DELIMITED and start < end and number in inner:
            room = _check_fields(view[start:end], inner[number], room)
    return room


@cache
def _inner(descriptor: Any) -> dict[int, Any]:
    """Return the fields of a message that are messages."""
    return {number: field.message_type for number, field in descriptor.fields_by_number.items() if field.message_type}


def _has_unpacked(tensor: Any) -> bool:
    """Return whether values of a tensor came one by one, which are unknown to the packed form."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    numbers = {number for _, number in VALUES.values()}
    return any(field.field_number in numbers for field in UnknownFieldSet(tensor))
