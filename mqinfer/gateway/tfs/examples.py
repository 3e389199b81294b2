"""What `Classify` and `Regress` take and return: serialised `tensorflow.Example`s, and classes or values of outputs.

The sentences about wrong signatures and outputs are those of TensorFlow Serving (`classifier.cc`, `regressor.cc`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mqinfer.gateway.calls import InferCall
from mqinfer.gateway.core import Core
from mqinfer.gateway.tfs.calls import NamedModel, infer
from mqinfer.gateway.tfs.json_tensors import is_base64, shown, to_binary
from mqinfer.gateway.tfs.messages import tfs_class
from mqinfer.protocol.card import Signature
from mqinfer.protocol.datatypes import Array, Datatype, to_bytes
from mqinfer.protocol.errors import BadEnvelope, BadTensor, InvalidRequest, LimitExceeded, ModelFailed
from mqinfer.protocol.limits import DEFAULT_LIMITS

TASK_PREFIX = "tensorflow/serving/"
CLASSIFY, REGRESS = f"{TASK_PREFIX}classify", f"{TASK_PREFIX}regress"
"""Method names of tasks and signatures."""
_INPUTS, _CLASSES, _SCORES, _OUTPUTS = "inputs", "classes", "scores", "outputs"
MOST_NAMED = 1 << 19
"""Examples of one request, and their features in a body of JSON: what is made of one takes 10 microseconds."""


def examples_of(message: Any) -> Array:
    """Return the serialised examples of an `Input`; a context stands before each.

    Raises:
        BadTensor: There are none, or one is not an Example.
        LimitExceeded: They are too many, or too large with their context.
    """
    context = b""
    if message.WhichOneof("kind") == "example_list_with_context":
        found, context = message.example_list_with_context.examples, message.example_list_with_context.context
    else:
        found = message.example_list.examples
    if not len(found):
        raise BadTensor("Input is empty.")
    _check_together(context, len(found))
    return _checked([context + example for example in found])


def _checked(examples: list[bytes]) -> Array:
    from google.protobuf.message import DecodeError

    kind = tfs_class("Example")
    for place, example in enumerate(examples):
        try:
            kind.FromString(example)
        except (DecodeError, UnicodeDecodeError) as error:
            raise BadTensor(f"example {place} is not a tensorflow.Example: {error}") from error
    array = np.empty(len(examples), np.object_)
    array[:] = examples
    return array


def examples_from_json(content: Mapping[str, Any]) -> Array:
    """Return the serialised examples of the body of a request to classify or regress.

    Raises:
        BadEnvelope, BadTensor: It has none, or a feature can't be one.
        LimitExceeded: They are too many, or too large with their context.
    """
    context = _example(content["context"]) if "context" in content else b""
    if "examples" not in content:
        raise BadEnvelope(
            f"JSON Value: {shown(content)} When method is classify, key 'examples' is expected and was not found"
        )
    examples = content["examples"]
    if not isinstance(examples, list):
        raise BadEnvelope(f"JSON Value: {shown(content)} Expecting 'examples' value to be an list/array")
    if not examples:
        raise BadEnvelope(f"JSON Value: {shown(content)} 'examples' value is an empty array")
    _check_together(context, len(examples))
    array = np.empty(len(examples), np.object_)
    array[:] = [context + _example(each) for each in examples]
    return array


def _check_together(context: bytes, examples: int) -> None:
    """Bound what few bytes can stand for: a context is made a part of each example."""
    if examples > MOST_NAMED:
        raise LimitExceeded(f"{examples} examples; at most {MOST_NAMED} are accepted: send less in one request")
    if (size := len(context) * examples) > DEFAULT_LIMITS.payload_bytes:
        raise LimitExceeded(
            f"a context of {len(context)} bytes before each of {examples} examples takes {size} bytes; at most "
            f"{DEFAULT_LIMITS.payload_bytes} are accepted: send less in one request"
        )


def _example(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise BadTensor(f"Example must be JSON object but got JSON {shown(value)}")
    example = tfs_class("Example")()
    features = example.features.feature
    for name, content in value.items():
        values = content if isinstance(content, list) else [content]
        _fill_feature(name, values, features[name])
    serialised: bytes = example.SerializeToString()
    return serialised


def _fill_feature(name: str, values: list[Any], feature: Any) -> None:
    kinds = {type(each) for each in values}
    try:
        if kinds <= {int, bool} and kinds:
            feature.int64_list.value.extend(map(int, values))
        elif kinds == {float}:
            feature.float_list.value.extend(values)
        elif kinds <= {str, dict} and kinds:
            feature.bytes_list.value.extend(_binary(name, each) for each in values)
        elif kinds:
            raise _unexpected(name, values, kinds)
    except (OverflowError, ValueError) as error:
        raise BadTensor(f"Feature: {name} has a number beyond int64. Only int64_t is supported.") from error


def _binary(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return to_bytes(value, name)
    if not is_base64(value):
        raise BadTensor(f"Feature: {name} has element with unexpected JSON type: Object")
    return to_binary(value)


def _unexpected(name: str, values: list[Any], kinds: set[type]) -> BadTensor:
    for kind, text in ((type(None), "Null"), (list, "Array")):
        if kind in kinds:
            return BadTensor(f"Feature: {name} has element with unexpected JSON type: {text}")
    first = values[0]
    kind_text = "float" if isinstance(first, float) else "int64" if isinstance(first, int) else "bytes"
    return BadTensor(f"Unexpected element type in feature: {name} expecting type: {kind_text}")


def _check_classify(signature: Signature) -> None:
    _check_inputs(signature, "classification")
    names = {tensor.name for tensor in signature.outputs}
    if len(names) not in {1, 2}:
        raise InvalidRequest(f"Expected one or two output Tensors, found {len(names)}")
    if not names & {_CLASSES, _SCORES}:
        raise InvalidRequest(
            'Expected classification signature outputs to contain at least one of "classes" or "scores". Signature '
            f"was: {signature.name}, with the outputs {', '.join(sorted(names))}"
        )


def _check_regress(signature: Signature) -> None:
    _check_inputs(signature, "regression")
    if len(signature.outputs) != 1:
        raise InvalidRequest("Expected one output Tensor.")
    if signature.outputs[0].name != _OUTPUTS:
        raise InvalidRequest(f"No regression outputs found in SignatureDef: {signature.name}")


def _check_inputs(signature: Signature, what: str) -> None:
    if len(signature.inputs) != 1:
        raise InvalidRequest("Expected one input Tensor.")
    if signature.inputs[0].name != _INPUTS:
        raise InvalidRequest(f"No {what} inputs found in SignatureDef: {signature.name}")
    if signature.inputs[0].datatype is not Datatype.BYTES:
        raise InvalidRequest(
            f"signature {signature.name!r} takes {signature.inputs[0].datatype}, no serialised tensorflow.Examples; "
            "use Predict"
        )


def _classes_of(outputs: Mapping[str, Array], examples: int) -> list[list[tuple[str, float]]]:
    """Return the classes of each example, with label (empty where the model has none) and score."""
    columns = {name: outputs[name] for name in (_CLASSES, _SCORES) if name in outputs}
    for name, array in columns.items():
        _check_column(name, array, examples)
    widths = [array.shape[1] for array in columns.values()]
    if not widths:  # pragma: no cover  the signature was checked
        raise ModelFailed("neither classes nor scores came back")
    if widths[0] != widths[-1]:
        raise ModelFailed(f"Tensors class and score should match in dim_size(1). Got {widths[0]} vs. {widths[-1]}")
    names = _labels(columns[_CLASSES]) if _CLASSES in columns else [[""] * widths[0]] * examples
    numbers = columns[_SCORES].tolist() if _SCORES in columns else [[0.0] * widths[0]] * examples
    return [list(zip(row, marks, strict=True)) for row, marks in zip(names, numbers, strict=True)]


def _labels(array: Array) -> list[list[str]]:
    return [[each if isinstance(each, str) else each.decode(errors="replace") for each in row] for row in array]


def _check_column(name: str, array: Array, examples: int) -> None:
    """Raise ModelFailed unless an output has a row of labels or of scores for each example."""
    kind, type_name = ("O", "STRING") if name == _CLASSES else ("f", "FLOAT")
    if array.ndim != 2:
        raise ModelFailed(f"Expected Tensor shape: [batch_size num_classes] but got {list(array.shape)}")
    if array.dtype.kind != kind:
        raise ModelFailed(f"Expected {name} Tensor of DT_{type_name}. Got: {array.dtype}")
    if len(array) != examples:
        raise ModelFailed(f"Expected {name} output batch size of {examples}. Got: {len(array)}")


def _values_of(outputs: Mapping[str, Array], examples: int) -> Array:
    """Return the value of each example."""
    array = outputs[_OUTPUTS]
    if array.ndim not in {1, 2} or (array.ndim > 1 and array.shape[1] != 1):
        raise ModelFailed(
            f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {list(array.shape)}"
        )
    if len(array) != examples:
        raise ModelFailed(f"Input batch size did not match output batch size: {examples} vs. {len(array)}")
    if array.dtype.kind != "f":
        raise ModelFailed(f"Expected output Tensor of DT_FLOAT.  Got: {array.dtype}")
    return array.reshape(-1)


@dataclass(frozen=True, slots=True)
class Task:
    """What can be made of examples.

    Attributes:
        check: Check of the signature; raises InvalidRequest where it has not the inputs and outputs.
        read: Reader of the outputs for so many examples; raises ModelFailed where they are not what they should be.
    """

    check: Callable[[Signature], None]
    read: Callable[[Mapping[str, Array], int], Any]


TASKS = {CLASSIFY: Task(_check_classify, _classes_of), REGRESS: Task(_check_regress, _values_of)}
"""Tasks by method name."""


async def run_task(core: Core, target: NamedModel, task: Task, examples: Array, call: InferCall) -> tuple[Any, str]:
    """Classify or regress examples; return classes or value of each, and the version that answered.

    Raises:
        MqinferError: Whatever came of it.
    """
    task.check(target.signature)
    outputs, version = await infer(core, target, {target.signature.inputs[0].name: examples}, call)
    return task.read(outputs, len(examples)), version
