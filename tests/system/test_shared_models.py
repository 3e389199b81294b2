from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.protocol.topics import Topics

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.shared_data]
Serve = Callable[[Path], Topics]


def digits(shared_data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the 1000 digits: pixels of 0 to 255, [1000, 784], and their labels."""
    records = np.fromfile(shared_data / "models" / "mnist_1000.data", "<f4").reshape(1000, 794)
    return records[:, :784], records[:, 784:].argmax(axis=1)


def test_the_frozen_graph_gets_958_digits(tmp_path: Path, shared_data: Path, serving: Serve, broker_url: str) -> None:
    """A foreign frozen graph recognises the expected share of digits, in batches through the broker."""
    (tmp_path / "fc" / "1").mkdir(parents=True)
    shutil.copy(shared_data / "models" / "tf2onnx_fc-layers.pb", tmp_path / "fc" / "1" / "model.pb")
    pixels, labels = digits(shared_data)

    with Client(broker_url, root=serving(tmp_path).root) as client:
        name = client.card("fc").inputs[0].name
        batches = [client.submit("fc", {name: batch / 255}) for batch in np.split(pixels, 125)]
        found = np.concatenate([batch.result().outputs["output"].argmax(axis=1) for batch in batches])

    assert (found == labels).sum() == 958


def test_the_onnx_model_of_batch_1_gets_993_digits(
    tmp_path: Path, shared_data: Path, serving: Serve, broker_url: str
) -> None:
    """An ONNX model with a fixed batch of 1 answers a thousand requests, each alone."""
    (tmp_path / "mnist" / "1").mkdir(parents=True)
    shutil.copy(shared_data / "models" / "ort_examples_mnist.onnx", tmp_path / "mnist" / "1" / "model.onnx")
    pixels, labels = digits(shared_data)

    with Client(broker_url, root=serving(tmp_path).root) as client:
        card = client.card("mnist")
        pictures = pixels.reshape(1000, 1, 1, 28, 28)
        replies = [client.submit("mnist", {card.inputs[0].name: picture}) for picture in pictures]
        found = np.array([reply.result().outputs[card.outputs[0].name].argmax() for reply in replies])

    assert card.max_batch_size == 1
    assert (found == labels).sum() == 993


@pytest.mark.parametrize("version", [None, 123, 124])
def test_half_plus_two_answers_in_both_versions(
    tmp_path: Path, shared_data: Path, serving: Serve, broker_url: str, version: int | None
) -> None:
    """A SavedModel with six signatures and two versions, as TensorFlow Serving lays it out."""
    shutil.copytree(shared_data / "models" / "half_plus_two_2_versions", tmp_path / "half_plus_two")
    (tmp_path / "half_plus_two" / "model.toml").write_text("[version_policy.all]\n")

    with Client(broker_url, root=serving(tmp_path).root) as client:
        x = np.array([[1], [2], [5]], np.float32)
        result = client.infer("half_plus_two", {"x": x}, version=version)

    assert result.outputs["y"].ravel().tolist() == [2.5, 3.0, 4.5]
    assert result.model_version == str(version or 124)
