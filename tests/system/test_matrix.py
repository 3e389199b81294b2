"""One small network in every format and backend, through the broker: all agree with NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec, serve
from mqinfer.models.engines import BACKENDS
from mqinfer.models.repository import Repository
from mqinfer.protocol.topics import Topics
from tests.system.small_models import CHANNELS, CLASSES, SIDE, build, truth

pytestmark = [pytest.mark.broker, pytest.mark.slow]

IMAGES = np.random.default_rng(21).random((4, SIDE, SIDE, CHANNELS), np.float32)

MODELS = {
    "graph": ("frozen-graph", "tensorflow_graphdef", "tensorflow"),
    "graph-openvino": ("frozen-graph", "tensorflow_graphdef", "openvino"),
    "saved": ("saved-model", "tensorflow_savedmodel", "tensorflow"),
    "saved-openvino": ("saved-model", "tensorflow_savedmodel", "openvino"),
    "keras": ("keras", "tensorflow_keras", "tensorflow"),
    "keras-h5": ("hdf5", "tensorflow_keras", "tensorflow"),
    "onnx": ("onnx", "onnx_onnxv1", "onnxruntime"),
    "onnx-openvino": ("onnx", "onnx_onnxv1", "openvino"),
    "ir": ("openvino", "openvino_ir", "openvino"),
    "torchscript": ("torchscript", "pytorch_torchscript", "pytorch"),
}
"""Model in the test's repository: how it is built, its format and its engine."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, broker_url: str) -> Iterator[Client]:
    """Serve all models in this process on a real Mosquitto; return a client."""
    repository = tmp_path_factory.mktemp("matrix")
    for model, (kind, *_) in MODELS.items():
        folder = build(repository, model, kind)
        if model.endswith("-openvino"):
            (folder / "model.toml").write_text('backend = "openvino"\n')
    topics = Topics(repository.name)
    template = ProcessSpec(
        repository, "", 0, BrokerAddress.parse(broker_url), WorkerOptions(repository.name, topics), device="cpu"
    )
    with ExitStack() as stack:
        for spec in plan(Repository(repository), template):
            stack.callback(serve(spec).stop)
        yield stack.enter_context(Client(broker_url, root=topics.root))


def test_nothing_is_left_out() -> None:
    """The matrix holds every format with every engine that reads it.

    Left out are the echo, and TensorFlow Lite, whose files name tensors otherwise (tests/models/test_openvino.py).
    """
    every = {(platform, engine) for platform, engines in BACKENDS.items() for engine in engines}
    served = {tuple(rest) for _, *rest in MODELS.values()}
    assert served == every - {
        ("mqinfer_echo", "mqinfer_echo"),
        ("tensorflow_lite", "openvino"),
    }


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("model", MODELS)
def test_every_back_end_agrees(client: Client, model: str, batch: int) -> None:
    """The same names, types and shapes, and the same scores within 1e-4, from the requested engine."""
    card = client.card(model)
    _, platform, engine = MODELS[model]
    name = {"pytorch": "torch"}.get(engine, engine)
    known = card.parameters
    assert (card.platform, known.backend.split()[0], known.device, known.precision) == (platform, name, "cpu", "fp32")
    assert [(spec.name, spec.shape) for spec in card.inputs] == [("image", (-1, SIDE, SIDE, CHANNELS))]
    assert [(spec.name, spec.shape) for spec in card.outputs] == [("scores", (-1, CLASSES))]

    scores = client.infer(model, {"image": IMAGES[:batch]}).outputs["scores"]

    assert (scores.dtype.name, scores.shape) == ("float32", (batch, CLASSES))
    assert np.abs(scores.astype(np.float64) - truth(IMAGES[:batch])).max() < 1e-4
