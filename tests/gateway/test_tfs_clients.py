"""TensorFlow Serving's published client and the documented calls of its REST API, against SavedModels of two versions.

The models take some seconds to be served: each of their processes imports TensorFlow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import Fleet, call_peer, core_of, serve_repository
from tests.gateway.saved_models import SIGNATURES, save_half_plus_two
from tests.gateway.tfs_front import TfsFront, serving

CLIENT = """
    import sys
    import grpc
    import numpy as np
    import tensorflow as tf
    from tensorflow_serving.apis import classification_pb2, get_model_metadata_pb2, get_model_status_pb2
    from tensorflow_serving.apis import inference_pb2, model_service_pb2_grpc, predict_pb2
    from tensorflow_serving.apis import prediction_service_pb2_grpc, regression_pb2

    channel = grpc.insecure_channel(sys.argv[1])
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def spec(request, signature="", version=None, name="half_plus_two"):
        request.model_spec.name, request.model_spec.signature_name = name, signature
        if version:
            request.model_spec.version.value = version
        return request

    def predict(tensor, signature="", version=None, name="x", **further):
        request = spec(predict_pb2.PredictRequest(), signature, version)
        request.inputs[name].CopyFrom(tensor)
        for key, one in further.items():
            request.inputs[key].CopyFrom(one)
        return stub.Predict(request, 60)

    def asked(reply, signature, version=124):
        found = reply.model_spec
        assert (found.name, found.version.value, found.signature_name) == ("half_plus_two", version, signature), found

    one = tf.make_tensor_proto(2.0, shape=[1])
    for version, plus in ((123, 2.0), (124, 3.0), (None, 3.0)):
        reply = predict(one, version=version)
        assert reply.outputs["y"].float_val == [1.0 + plus] and len(reply.outputs["y"].tensor_shape.dim) == 1, reply
        asked(reply, "serving_default", version or 124)
    assert reply.outputs["label_bytes"].string_val == [b"2.000000"], reply
    rows = np.arange(1000, dtype=np.float32).reshape(1000, 1)
    found = tf.make_ndarray(predict(tf.make_tensor_proto(rows)).outputs["y"])
    assert found.shape == (1000, 1) and (found == rows / 2 + 3).all()
    found = tf.make_ndarray(predict(tf.make_tensor_proto(rows[:, 0])).outputs["y"])
    assert found.shape == (1000,) and (found == rows[:, 0] / 2 + 3).all()
    request = spec(predict_pb2.PredictRequest())
    request.model_spec.version_label = "canary"
    request.inputs["x"].CopyFrom(one)
    asked(stub.Predict(request, 60), "serving_default", 123)
    reply = predict(tf.make_tensor_proto(2), "add", name="a", b=tf.make_tensor_proto(3))
    assert reply.outputs["sum"].int_val == [5] and not reply.outputs["sum"].tensor_shape.dim
    asked(reply, "add")
    for shape in ((), (3,), (20, 3), (2, 3, 4)):
        reply = predict(tf.make_tensor_proto(np.full(shape, 4, np.float32)), "predict_images", name="images")
        found = tf.make_ndarray(reply.outputs["scores"])
        assert found.shape == shape and (found == 5).all(), found

    def examples(request, *values):
        for value in values:
            request.input.example_list.examples.add().features.feature["x"].float_list.value.append(value)
        return request

    numbers = [float(each) for each in range(20)]
    reply = stub.Regress(examples(spec(regression_pb2.RegressionRequest(), "regress_x_to_y"), *numbers), 60)
    assert [each.value for each in reply.result.regressions] == [each / 2 + 3 for each in numbers]
    asked(reply, "regress_x_to_y")
    reply = stub.Classify(examples(spec(classification_pb2.ClassificationRequest(), "classify_x_to_y", 123), 2.0), 60)
    (only,) = reply.result.classifications[0].classes
    assert (only.label, only.score) == ("", 3.0)
    asked(reply, "classify_x_to_y", 123)
    reply = stub.Classify(examples(spec(classification_pb2.ClassificationRequest(), "label"), 2.0), 60)
    assert [(each.label, each.score) for each in reply.result.classifications[0].classes] == [("low", -4), ("high", 4)]
    context = spec(regression_pb2.RegressionRequest(), "regress_x_to_y")
    context.input.example_list_with_context.examples.add()
    context.input.example_list_with_context.context.features.feature["x"].float_list.value.append(8.0)
    assert stub.Regress(context, 60).result.regressions[0].value == 7.0

    request = inference_pb2.MultiInferenceRequest()
    for signature, method in (("regress_x_to_y", "regress"), ("classify_x_to_y", "classify")):
        spec(request.tasks.add(method_name=f"tensorflow/serving/{method}"), signature)
    regressed, classified = stub.MultiInference(examples(request, 2.0), 60).results
    assert regressed.regression_result.regressions[0].value == 4.0
    assert classified.classification_result.classifications[0].classes[0].score == 4.0
    asked(regressed, "regress_x_to_y"), asked(classified, "classify_x_to_y")

    request = spec(get_model_metadata_pb2.GetModelMetadataRequest())
    request.metadata_field.append("signature_def")
    reply = stub.GetModelMetadata(request, 60)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert reply.model_spec.version.value == 124 and reply.metadata["signature_def"].Unpack(signatures)
    assert sorted(signatures.signature_def) == sorted(sys.argv[2].split(","))
    own = signatures.signature_def["serving_default"]
    assert (own.inputs["x"].name, own.inputs["x"].dtype, own.outputs["y"].name) == ("x:0", tf.float32, "y:0")
    assert signatures.signature_def["regress_x_to_y"].inputs["inputs"].tensor_shape.unknown_rank

    status = model_service_pb2_grpc.ModelServiceStub(channel)
    reply = status.GetModelStatus(spec(get_model_status_pb2.GetModelStatusRequest()), 60)
    assert [(each.version, each.state, each.status.error_code) for each in reply.model_version_status] == [
        (124, 30, 0), (123, 30, 0)]

    def fails(code, text, call, *arguments):
        try:
            call(*arguments)
        except grpc.RpcError as error:
            assert error.code() is code and error.details().startswith(text), error
        else:
            raise AssertionError(f"expected {text}")

    codes = grpc.StatusCode
    fails(codes.NOT_FOUND, "Servable not found for request: Specific(half_plus_two, 7)", predict, one, "", 7)
    fails(codes.FAILED_PRECONDITION, 'Serving signature key "none" not found.', predict, one, "none")
    fails(codes.INVALID_ARGUMENT, "input size does not match signature: 1!=1 ", predict, one, "", None, "z")
    fails(codes.INVALID_ARGUMENT, "", predict, tf.make_tensor_proto([1, 2]))
    fails(codes.INVALID_ARGUMENT, "Input is empty.", stub.Regress, spec(regression_pb2.RegressionRequest()))
    request = examples(spec(regression_pb2.RegressionRequest()), 1.0)
    fails(codes.INVALID_ARGUMENT, "No regression inputs found in SignatureDef: ", stub.Regress, request)
    channel.close()
    print("PASS")
"""


@pytest.fixture(scope="module")
def half_plus_two(
    tf: Any, save_tf1: Callable[..., Path], broker_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Serve half plus two, and half plus three as its second version."""
    folder = tmp_path_factory.mktemp("saved") / "half_plus_two"
    for version, plus in (("123", 2.0), ("124", 3.0)):
        save_half_plus_two(tf, save_tf1, folder / version / "model.savedmodel", plus)
    (folder / "model.toml").write_text("version_policy = { all = {} }\n")
    (folder / "traffic.toml").write_text("stable = 124\ncanary = 123\n")
    with serve_repository(folder.parent, broker_url, "saved") as served:
        yield served


def run(fleet: Fleet, ask: Callable[[TfsFront], Any]) -> None:
    """Run a coroutine function with both fronts."""

    async def main() -> None:
        async with serving(core_of(fleet)) as front:
            await ask(front)

    asyncio.run(main())


def test_the_published_client(half_plus_two: Fleet, peer_python: Callable[[str], Path]) -> None:
    """tensorflow-serving-api predicts, classifies and regresses by every signature of both versions."""
    python = peer_python("tfs")

    async def ask(front: TfsFront) -> None:
        await call_peer(python, CLIENT, front.address, ",".join(SIGNATURES))

    run(half_plus_two, ask)


def test_the_documented_calls(half_plus_two: Fleet) -> None:
    """Status, predict in both forms, regress and classify, as the API's documentation and its tests have them."""

    async def ask(front: TfsFront) -> None:
        model = "half_plus_two/versions/123"
        status = await front.rest("GET", f"/v1/models/{model}")
        assert status.json == {
            "model_version_status": [
                {"version": "123", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
            ]
        }
        reply = await front.post(f"{model}:predict", {"instances": [2.0, 3.0, 5.0]})
        assert [row["y"] for row in reply.json["predictions"]] == [3.0, 3.5, 4.5]
        assert reply.json["predictions"][0]["label_bytes"] == {"b64": "Mi4wMDAwMDA="}
        reply = await front.post(f"{model}:predict", {"inputs": [[2.0], [3.0], [5.0]]})
        assert reply.json["outputs"]["y"] == [[3.0], [3.5], [4.5]]
        reply = await front.post("half_plus_two/labels/canary:predict", {"inputs": [[2.0]]})
        assert reply.json["outputs"]["y"] == [[3.0]]
        assert (await front.rest("GET", "/v1/models/half_plus_two/labels/canary")).json == status.json
        asked: dict[str, Any] = {"signature_name": "predict_images", "instances": [[2.0, 3.0], [5.0, 7.0]]}
        assert (await front.post(f"{model}:predict", asked)).json == {"predictions": [[3.0, 3.5], [4.5, 5.5]]}
        asked = {"signature_name": "regress_x_to_y", "examples": [{"x": float(each)} for each in range(20)]}
        assert (await front.post(f"{model}:regress", asked)).json == {"results": [each / 2 + 2 for each in range(20)]}
        asked = {"signature_name": "classify_x_to_y", "examples": [{"x": 2.0}]}
        assert (await front.post(f"{model}:classify", asked)).json == {"results": [[["", 3.0]]]}
        asked = {"signature_name": "label", "context": {"x": 2.0}, "examples": [{}]}
        assert (await front.post(f"{model}:classify", asked)).json == {"results": [[["low", -3.0], ["high", 3.0]]]}
        metadata = (await front.rest("GET", f"/v1/models/{model}/metadata")).json
        signatures = metadata["metadata"]["signature_def"]["signature_def"]
        assert sorted(signatures) == sorted(SIGNATURES)
        assert signatures["regress_x_to_y"] == {
            "inputs": {
                "inputs": {
                    "dtype": "DT_STRING", "tensor_shape": {"dim": [], "unknown_rank": True}, "name": "tf_example:0",
                }
            },
            "outputs": {
                "outputs": {
                    "dtype": "DT_FLOAT", "name": "scores:0",
                    "tensor_shape": {
                        "dim": [{"size": "-1", "name": ""}, {"size": "1", "name": ""}], "unknown_rank": False,
                    },
                }
            },
            "method_name": "tensorflow/serving/regress",
            "defaults": {},
        }  # fmt: skip

    run(half_plus_two, ask)


def test_wrong_examples(half_plus_two: Fleet) -> None:
    """Signatures that can't classify or regress, and examples that the model refuses, are errors that say why."""

    async def ask(front: TfsFront) -> None:
        for method, signature, examples, status, error in (
            ("regress", "add", [{"x": 1.0}], 400, "Expected one input Tensor."),
            ("regress", "label", [{"x": 1.0}], 400, "Expected one output Tensor."),
            ("classify", "regress_x_to_y", [{"x": 1.0}], 400, "Expected classification signature outputs to contain"),
            ("classify", "", [{"x": 1.0}], 400, "No classification inputs found in SignatureDef: serving_default"),
            ("regress", "none", [{"x": 1.0}], 400, 'Serving signature name: "none" not found in signature def'),
            ("regress", "regress_x_to_y", [{"q": 1.0}], 500, "Feature: x (data type: float) is required"),
        ):
            reply = await front.post(f"half_plus_two:{method}", {"signature_name": signature, "examples": examples})
            assert reply.status == status, reply
            assert error in reply.error

    run(half_plus_two, ask)
