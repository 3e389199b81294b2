"""The jet autoencoders: published layer tables, scores against NumPy, formats that agree, scores of anomalies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mqinfer.lab.zoo import building
from mqinfer.lab.zoo.jet_plots import draw_autoencoder
from mqinfer.lab.zoo.layers import tensorflow
from mqinfer.lab.zoo.networks import jet_models
from mqinfer.lab.zoo.networks.autoencoder import (
    OUTPUTS,
    Autoencoder,
    chamfer_distance,
    divergence,
    export,
    squared_error,
    train,
)
from mqinfer.lab.zoo.networks.conv_vae import conv_vae
from mqinfer.lab.zoo.networks.graph_vae import graph_vae
from mqinfer.lab.zoo.networks.jets import MEAN, STD, adjacency, draw_jets
from mqinfer.models.engines import choose_loader
from mqinfer.models.load_options import LoadOptions
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository

Array = npt.NDArray[Any]
FORMATS = ("", "_savedmodel", "_onnx")

ENCODER = [
    ("conv2d", (98, 1, 16), 160),
    ("conv1d", (96, 20), 980),
    ("conv1d", (94, 24), 1464),
    ("dense", (136,), 153_544),
    ("dense", (32,), 4384),
    ("z", (8,), 264),
]
"""Layers with parameters, their outputs without the batch axis and their numbers of parameters, as published."""
DECODER = [
    ("dense", (32,), 288),
    ("dense", (136,), 4488),
    ("dense", (1128,), 154_536),
    ("conv1d_transpose", (96, 20), 1460),
    ("conv1d_transpose", (98, 16), 976),
    ("conv2d_transpose", (100, 3, 1), 145),
]


def reference_chamfer(jets: Array, others: Array) -> Array:
    """Return the Chamfer distance by its definition, in double precision."""
    apart = ((jets[:, :, None].astype(np.float64) - others[:, None]) ** 2).sum(axis=3)
    result: Array = apart.min(axis=2).mean(axis=1) + apart.min(axis=1).mean(axis=1)
    return result


def reference_divergence(mean: Array, log_variance: Array) -> Array:
    """Return the divergence by appendix B of arXiv:1312.6114."""
    result: Array = -0.5 * (1 + log_variance - mean**2 - np.exp(log_variance)).sum(axis=1)
    return result


def normal(jets: Array) -> Array:
    """Return normalised jets."""
    result: Array = (jets - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return result


def table(model: Any) -> list[tuple[str, tuple[int, ...], int]]:
    """Return the layers with parameters."""
    return [
        (layer.name.rstrip("0123456789").rstrip("_"), tuple(layer.output.shape[1:]), layer.count_params())
        for layer in model.layers
        if layer.count_params()
    ]


def separation(ordinary: Array, anomalous: Array) -> float:
    """Return the share of pairs in which the anomalous jet has the higher score (the area under the ROC curve)."""
    return float((anomalous[:, None] > ordinary[None]).mean())


@pytest.fixture(scope="module")
def conv() -> Autoencoder:
    """The Conv-VAE with random weights."""
    return conv_vae()


@pytest.fixture(scope="module")
def graph() -> Autoencoder:
    """The graph Conv-VAE with random weights."""
    return graph_vae()


def test_jets() -> None:
    """Particles are sorted by momentum and padded with zeros; one seed yields the same jets."""
    jets = draw_jets(50, seed=3)
    assert jets.shape == (50, 100, 3)
    assert jets.dtype == np.float32
    assert (jets[:, 0, 2] > 0).all()
    there = jets[..., 2] > 0
    assert not jets[~there].any()
    assert (np.diff(np.where(there, jets[..., 2], np.nan), axis=1)[there[:, 1:] & there[:, :-1]] <= 0).all()
    np.testing.assert_array_equal(jets, draw_jets(50, seed=3))
    assert not np.array_equal(jets, draw_jets(50, seed=4))


def test_neighbours() -> None:
    """Near particles are connected symmetrically, none with itself, and padding with nothing."""
    jets = np.zeros((1, 4, 3), np.float32)
    jets[0, :3] = [(0, 0, 9), (0.05, 0, 4), (0.3, 0, 1)]
    np.testing.assert_array_equal(adjacency(jets)[0], [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])


@pytest.mark.slow
def test_scores_against_numpy() -> None:
    """The three scores follow their formulas, and are 0 without a difference."""
    rng = np.random.default_rng(0)
    jets, others = (rng.normal(size=(5, size, 3)).astype(np.float32) for size in (40, 30))
    np.testing.assert_allclose(chamfer_distance(jets, others), reference_chamfer(jets, others), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(chamfer_distance(jets, jets[:, ::-1]), 0, atol=1e-5)
    mean, log_variance = rng.normal(size=(2, 5, 8)).astype(np.float32)
    np.testing.assert_allclose(
        divergence(mean, log_variance), reference_divergence(mean, log_variance), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(divergence(0 * mean, 0 * mean), 0)
    np.testing.assert_allclose(squared_error(jets, jets[::-1]), ((jets - jets[::-1]) ** 2).sum(axis=(1, 2)), rtol=1e-5)


@pytest.mark.full
@pytest.mark.slow
def test_the_published_layers(conv: Autoencoder) -> None:
    """Layers, outputs and parameters are those published; 160,796 and 161,893 in all."""
    assert table(conv.encoder) == [*ENCODER, ("z_log_var", (8,), 264)]
    assert table(conv.decoder) == DECODER
    assert (conv.encoder.count_params(), conv.decoder.count_params()) == (160_796 + 264, 161_893)


@pytest.mark.full
@pytest.mark.slow
def test_outputs_of_the_conv_vae(conv: Autoencoder) -> None:
    """The latent means are decoded; loss is squared error plus beta times divergence; units are the input's."""
    jets = draw_jets(4)
    results = {name: np.asarray(tensor) for name, tensor in export(conv).infer(jets).items()}
    assert set(results) == set(OUTPUTS)
    mean, log_variance = (np.asarray(each) for each in conv.encoder([normal(jets)]))
    rebuilt = np.asarray(conv.decoder([mean]))
    np.testing.assert_allclose(results["z"], mean, rtol=1e-5)
    np.testing.assert_allclose(normal(results["reconstruction"]), rebuilt, atol=1e-5)
    error = ((normal(jets) - rebuilt) ** 2).sum(axis=(1, 2))
    np.testing.assert_allclose(results["loss"], error + 5e-4 * reference_divergence(mean, log_variance), rtol=1e-4)
    np.testing.assert_allclose(results["chamfer"], reference_chamfer(normal(jets), rebuilt), rtol=1e-4)


@pytest.mark.full
@pytest.mark.slow
def test_filters_of_the_graph_vae(graph: Autoencoder) -> None:
    """The encoder's layers are tanh(A' (X W + b)) with A' = D^-1/2 (A + I) D^-1/2, written out here."""
    jets = draw_jets(3, seed=5)
    joined = adjacency(jets)
    looped = joined + np.eye(100)
    degrees = looped.sum(axis=2) ** -0.5
    filters = degrees[:, :, None] * looped * degrees[:, None]
    weights = [np.asarray(each) for each in graph.encoder.trainable_variables]
    nodes = normal(jets)
    for kernel, bias in zip(weights[0:4:2], weights[1:4:2], strict=True):
        nodes = np.tanh(filters @ (nodes @ kernel + bias))
    hidden = np.tanh(nodes.reshape(3, -1) @ weights[4] + weights[5])
    expected = hidden @ weights[6] + weights[7]
    results = tensorflow().function(export(graph).infer)(jets, joined)
    np.testing.assert_allclose(results["z"], expected, rtol=1e-4, atol=1e-5)
    assert results["reconstruction"].shape == jets.shape


@pytest.mark.full
@pytest.mark.slow
def test_anomalies_stand_out() -> None:
    """A few steps of training lower the loss, and jets with two cores get higher scores."""
    model = conv_vae()
    losses = train(model, [draw_jets(1024, seed=1)], steps=60, rate=1e-3)
    assert np.mean(losses[-10:]) < 0.85 * np.mean(losses[:3])
    infer = export(model).infer
    ordinary, anomalous = (infer(draw_jets(300, cores, seed=2)) for cores in (1, 2))
    for score in ("loss", "chamfer"):
        assert separation(np.asarray(ordinary[score]), np.asarray(anomalous[score])) > 0.65


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Both autoencoders in three formats, trained for three steps."""
    makers = jet_models.conv_vae_network, jet_models.graph_vae_network
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jet_models, "_STEPS", 3)
        path = tmp_path_factory.mktemp("jets")
        for make in makers:
            make.cache_clear()
        building.build(path, [f"{name}{form}" for name in ("conv_vae", "graph_vae") for form in FORMATS])
        yield path
    for make in makers:
        make.cache_clear()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv_vae", "graph_vae"])
def test_formats_agree(repository: Path, name: str) -> None:
    """Frozen graph (in OpenVINO too), SavedModel and ONNX have the same inputs and outputs; rows are independent."""
    jets = draw_jets(5, seed=9)
    feeds = {"jets": jets} if name == "conv_vae" else {"features": jets, "adjacency": adjacency(jets)}
    graph = repository / name / "1" / "model.pb"
    answers: list[dict[str, Any]] = []
    for found in Repository(repository).models():
        if found.name not in {name + form for form in FORMATS}:
            continue
        model = load_model(found, device="cpu")
        assert {spec.name for spec in model.backend.inputs} == set(feeds)
        assert {spec.name for spec in model.backend.outputs} == set(OUTPUTS)
        assert model.card.max_batch_size == 256
        answers.append(answer := dict[str, Any](model.backend.infer(feeds)))
        alone: dict[str, Any] = dict(model.backend.infer({key: array[3:4] for key, array in feeds.items()}))
        np.testing.assert_allclose(alone["chamfer"], answer["chamfer"][3:4], rtol=1e-4)
        model.backend.close()
    assert len(answers) == 3
    answers.append(dict(choose_loader(graph, "openvino")(graph, LoadOptions()).infer(feeds)))
    for other in answers[1:]:
        for output, array in answers[0].items():
            np.testing.assert_allclose(other[output], array, rtol=1e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv_vae", "graph_vae"])
def test_plots_of_what_they_learned(repository: Path, name: str, tmp_path: Path) -> None:
    """The ROC curve and the losses of the build are drawn; the losses are those of its three steps."""
    model = Repository(repository).find(name)
    drawn = draw_autoencoder(model, tmp_path)
    assert [path.name for path in drawn] == [f"{name}-1-roc.png", f"{name}-1-loss.png"]
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert len(building.read_losses(model.folder.parent)) == 3
