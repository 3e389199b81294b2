"""Signatures of a SavedModel: the card names them, a request chooses one, and a batch holds requests of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.errors import BadTensor, InvalidRequest
from mqinfer.gateway.calls import InferCall
from mqinfer.gateway.checks import CardChecks
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import ModelVersion
from mqinfer.models.repository.config import ModelConfig
from mqinfer.protocol.card import SignatureTensor, card_from_json, card_to_json
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.types import InferRequest
from tests.gateway.saved_models import SIGNATURES, save_half_plus_two


@pytest.fixture(scope="module")
def saved(tf: Any, save_tf1: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    """Half plus two, on disk."""
    path = save_half_plus_two(tf, save_tf1, tmp_path_factory.mktemp("signatures") / "model")
    return ModelVersion("half", 1, path, ModelConfig())


@pytest.fixture(scope="module")
def model(saved: ModelVersion) -> LoadedModel:
    """Half plus two, loaded."""
    return load_model(saved, device="cpu")


@pytest.fixture
def service(model: LoadedModel) -> InferenceService:
    """A service of the model."""
    return InferenceService(model)


def request(signature: str = "", **inputs: Array) -> InferRequest:
    """Return a request."""
    parameters = {"signature_name": signature} if signature else {}
    tensors = tuple(encode_tensor(name, array) for name, array in inputs.items())
    return InferRequest("1", "half", tensors, parameters=parameters)


def example(tf: Any, *values: float) -> Array:
    """Return serialised examples with the feature `x`."""
    made = []
    for value in values:
        one = tf.train.Example()
        one.features.feature["x"].float_list.value.append(value)
        made.append(one.SerializeToString())
    return np.array(made, np.object_)


def test_the_card_names_the_signatures(model: LoadedModel) -> None:
    """Each with method, tensors as the file names them, and whether rows share a run; the card travels with them."""
    card = model.card
    assert [signature.name for signature in card.parameters.signatures] == SIGNATURES
    own, add, classify, *_ = card.parameters.signatures
    assert own.method == "tensorflow/serving/predict"
    assert own.inputs == (SignatureTensor("x", Datatype.FP32, (-1, 1), "x:0"),)
    assert {tensor.name: tensor.tensor for tensor in own.outputs} == {"y": "y:0", "label_bytes": "label:0"}
    assert classify.method == "tensorflow/serving/classify"
    assert classify.inputs == (SignatureTensor("inputs", Datatype.BYTES, None, "tf_example:0"),)
    assert (own.max_batch_size, add.max_batch_size, classify.max_batch_size) == (8, 0, 8)
    assert card_from_json(card_to_json(card)) == card


def test_a_request_chooses(tf: Any, service: InferenceService) -> None:
    """Each signature runs with its own inputs and outputs; without a name, or by its name, the model's own does."""
    x = np.array([[1], [4]], np.float32)
    for signature in ("", "serving_default"):
        (done,) = service.run([service.prepare(request(signature, x=x))])
        np.testing.assert_array_equal(done.outputs["y"], x / 2 + 2)
    asked = request("regress_x_to_y", inputs=example(tf, 1, 4))
    (done,) = service.run([service.prepare(asked)])
    np.testing.assert_array_equal(service.finish(asked, done.outputs)["outputs"], x / 2 + 2)
    (done,) = service.run([service.prepare(request("add", a=np.array(2, np.int32), b=np.array(3, np.int32)))])
    assert done.outputs["sum"] == 5


def test_a_batch_holds_one_signature(tf: Any, service: InferenceService) -> None:
    """Requests of different signatures have different keys; those of one are joined, and split again."""
    x = np.ones((1, 1), np.float32)
    plain, named = service.prepare(request(x=x)), service.prepare(request("serving_default", x=x))
    assert plain.key == named.key
    asked = [request("regress_x_to_y", inputs=example(tf, *values)) for values in ((1,), (2, 3))]
    first, second = map(service.prepare, asked)
    classified = service.prepare(request("classify_x_to_y", inputs=example(tf, 1)))
    assert first.key == second.key
    assert len({plain.key, first.key, classified.key}) == 3
    found = [done.outputs["outputs"].tolist() for done in service.run([first, second])]
    assert found == [[[2.5]], [[3.0], [3.5]]]


def test_a_signature_without_a_batch_axis(service: InferenceService) -> None:
    """Its requests run one by one, also where the batcher put some together."""
    asked = [request("add", a=np.array(number, np.int32), b=np.array(1, np.int32)) for number in range(3)]
    prepared = [service.prepare(each) for each in asked]
    assert len({each.key for each in prepared}) == 1
    assert [done.outputs["sum"].item() for done in service.run(prepared)] == [1, 2, 3]


def test_a_rank_that_the_file_leaves_open(model: LoadedModel, saved: ModelVersion) -> None:
    """Each request has its own, of any signature; requests share runs only where a batch axis is configured."""
    service = InferenceService(model)
    for shape in ((), (3,), (20, 3)):
        (done,) = service.run([service.prepare(request("predict_images", images=np.full(shape, 4, np.float32)))])
        np.testing.assert_array_equal(done.outputs["scores"], np.full(shape, 4, np.float32))
    with pytest.raises(BadTensor, match="FP64; expected FP32"):
        service.prepare(request("predict_images", images=np.zeros(3)))
    config = ModelConfig(parameters={"signature": "predict_images"}, max_batch_size=4)
    own = load_model(replace(saved, config=config), device="cpu")
    assert own.card.least_axes.keys() == {"images"}
    assert own.card.max_batch_size == 4
    batched, check = InferenceService(own), CardChecks(own.card).check
    asked = [request(images=np.full(shape, 4, np.float32)) for shape in ((2, 3), (1, 3), (2,))]
    first, second, other = map(batched.prepare, asked)
    assert first.key == second.key != other.key
    assert [done.outputs["scores"].shape for done in batched.run([first, second])] == [(2, 3), (1, 3)]
    for each in asked:
        check(InferCall("half", inputs=each.inputs))
    for wrong in (np.float32(4), np.zeros((5, 3), np.float32)):
        with pytest.raises(BadTensor):
            batched.prepare(request(images=np.asarray(wrong)))
        with pytest.raises(InvalidRequest):
            check(InferCall("half", inputs=request(images=np.asarray(wrong)).inputs))


def test_a_client_chooses(tf: Any, saved: ModelVersion, serve: Callable[..., Worker]) -> None:
    """The option of the client reaches the worker; requests of several signatures under way get their own outputs."""
    serve("memory://signatures", load_model(saved, device="cpu"))  # one of its own: the worker closes it
    x, examples = np.array([[4]], np.float32), example(tf, 4)
    with Client("memory://signatures") as client:
        futures = [client.submit("half", {"inputs": examples}, signature="regress_x_to_y") for _ in range(8)]
        futures += [client.submit("half", {"x": x}, outputs=["y"]) for _ in range(8)]
        assert [future.result().outputs["outputs"].item() for future in futures[:8]] == [4.0] * 8
        assert [future.result().outputs["y"].item() for future in futures[8:]] == [4.0] * 8
        with pytest.raises(InvalidRequest, match="no signature 'none'"):
            client.infer("half", {"x": x}, signature="none")


def test_wrong_requests(service: InferenceService) -> None:
    """An unknown signature is refused with those that there are; tensors are those of the signature."""
    with pytest.raises(InvalidRequest, match="no signature 'none'; it has: serving_default, add, classify_x_to_y"):
        service.prepare(request("none", x=np.ones((1, 1), np.float32)))
    with pytest.raises(BadTensor, match="takes the inputs \\['inputs'\\], not \\['x'\\]"):
        service.prepare(request("regress_x_to_y", x=np.ones((1, 1), np.float32)))
    with pytest.raises(BadTensor, match="at most 8"):
        service.prepare(request("regress_x_to_y", inputs=np.array([b""] * 9, np.object_)))


def test_a_model_without_signatures(write_onnx: Any, tmp_path: Path) -> None:
    """One that has none refuses the parameter, and its card says nothing of signatures."""
    path = tmp_path / "model.onnx"
    write_onnx(path, "FP32", ["n", 4])
    loaded = load_model(ModelVersion("half", 1, path, ModelConfig()), device="cpu")
    assert b"signatures" not in card_to_json(loaded.card)
    with pytest.raises(InvalidRequest, match="no signature 'serving_default'; it has: none"):
        InferenceService(loaded).prepare(request("serving_default", x=np.ones((1, 4), np.float32)))


def test_signatures_of_tensorflow_2(tf: Any, tmp_path: Path) -> None:
    """A model of TensorFlow 2 has its signatures too; one with tensors that the protocol lacks is left out."""
    module = tf.Module()
    double = tf.function(lambda x: {"y": 2 * x}).get_concrete_function(tf.TensorSpec([None, 2], name="x"))
    square = tf.function(lambda x: {"y": x * x}).get_concrete_function(tf.TensorSpec([None, 2], name="x"))
    short = tf.function(lambda x: {"y": x}).get_concrete_function(tf.TensorSpec([2], tf.bfloat16, name="x"))
    tf.saved_model.save(module, tmp_path, signatures={"double": double, "square": square, "short": short})
    config = ModelConfig(parameters={"signature": "square"})
    loaded = load_model(ModelVersion("half", 1, tmp_path, config), device="cpu")
    assert [(each.name, each.inputs[0].tensor) for each in loaded.card.parameters.signatures] == [
        ("square", "square_x:0"),
        ("double", "double_x:0"),
    ]
    service, x = InferenceService(loaded), np.full((1, 2), 3, np.float32)
    for signature, expected in (("", 9), ("square", 9), ("double", 6)):
        (done,) = service.run([service.prepare(request(signature, x=x))])
        assert done.outputs["y"].tolist() == [[expected, expected]]
    loaded.backend.close()
