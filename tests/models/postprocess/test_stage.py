from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.postprocess.stage import ClassMask, Postprocessed, network_of, with_postprocessing
from mqinfer.models.repository import Repository
from mqinfer.models.repository.config import ModelConfig, PictureConfig
from mqinfer.models.repository.output_tables import Detection, Segmentation
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.card import Layout
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import BadTensor, ConfigError
from mqinfer.protocol.types import InferRequest, RequestedOutput, TensorSpec

WriteEcho = Callable[..., Path]
LOGITS = np.random.default_rng(5).standard_normal((2, 6, 4, 5)).astype(np.float32)
SEGMENTATION = '[segmentation]\noutput = "logits"\nlayout = "FORMAT_NCHW"\n'
DETECTION = '[detection]\nboxes = "raw"\nscore_threshold = 0.5\n'


def load(repository: Path) -> LoadedModel:
    """Load the model that was written last; raise its problem if it has one."""
    scan = Repository(repository).scan()
    if scan.problems:
        raise ConfigError(scan.problems[0].reason)
    return load_model(scan.models[-1], device="cpu")


@pytest.fixture
def segmenter(write_echo: WriteEcho) -> LoadedModel:
    """A network that returns its input as logits, and something else."""
    inputs = ("logits", "FP32", [-1, 6, 4, 5]), ("extra", "INT64", [-1])
    return load(write_echo("echo", *inputs, config=SEGMENTATION))


@pytest.fixture
def detector(write_echo: WriteEcho) -> LoadedModel:
    """A network that returns its inputs as candidates."""
    return load(write_echo("zdetector", ("raw", "FP32", [-1, 7, 40]), config=DETECTION))


def serve(model: LoadedModel, *requested: RequestedOutput, **arrays: Any) -> dict[str, Any]:
    """Run a model as a worker does; return what a client decodes."""
    service = InferenceService(model)
    tensors = tuple(encode_tensor(name, array) for name, array in arrays.items())
    request = InferRequest("1", model.card.name, tensors, outputs=requested)
    (done,) = service.run([service.prepare(request)])
    assert done.error is None
    outputs = service.finish(request, done.outputs)
    return {tensor.name: decode_tensor(tensor) for tensor in service.encode(request, outputs)}


def test_the_card_says_what_comes_back(segmenter: LoadedModel, detector: LoadedModel) -> None:
    """Outputs are those after post-processing, and batches stay possible."""
    assert segmenter.card.outputs == (
        TensorSpec("extra", Datatype.INT64, (-1,)),
        TensorSpec("logits", Datatype.UINT8, (-1, 4, 5)),
    )
    assert [(spec.name, spec.shape) for spec in detector.card.outputs] == [
        ("boxes", (-1, 4)),
        ("scores", (-1,)),
        ("classes", (-1,)),
    ]
    assert segmenter.card.max_batch_size == detector.card.max_batch_size == 8


def test_logits_become_a_mask_in_the_worker(segmenter: LoadedModel) -> None:
    """Alone, beside the other output, and if only the other is requested."""
    extra = np.arange(2)
    mask = LOGITS.argmax(1)
    found = serve(segmenter, logits=LOGITS, extra=extra)
    assert found["logits"].dtype == np.uint8
    np.testing.assert_array_equal(found["logits"], mask)
    np.testing.assert_array_equal(found["extra"], extra)
    found = serve(segmenter, RequestedOutput("logits", "mask"), logits=LOGITS, extra=extra)
    assert list(found) == ["logits"]
    np.testing.assert_array_equal(found["logits"], mask)
    assert list(serve(segmenter, RequestedOutput("extra"), logits=LOGITS, extra=extra)) == ["extra"]
    np.testing.assert_array_equal(segmenter.backend.infer({"logits": LOGITS, "extra": extra})["logits"], mask)


def test_only_kept_boxes_travel(detector: LoadedModel) -> None:
    """Of forty candidates one is kept; a batch is refused, also if the network can run it."""
    raw = np.zeros((1, 7, 40), np.float32)
    raw[0, :, 9] = 10, 20, 30, 40, 0.1, 0.2, 0.9
    found = serve(detector, raw=raw)
    assert {name: array.tolist() for name, array in found.items()} == {
        "boxes": [[10, 20, 30, 40]],
        "scores": [pytest.approx(0.9)],
        "classes": [2],
    }
    assert serve(detector, RequestedOutput("classes"), raw=raw)["classes"].tolist() == [2]
    with pytest.raises(BadTensor, match="2 pictures"):
        serve(detector, raw=np.repeat(raw, 2, axis=0))


def test_requests_for_boxes_share_a_batch(detector: LoadedModel) -> None:
    """The network runs once for both; each gets its own boxes."""
    service = InferenceService(detector)
    requests = []
    for number in (1, 3):
        raw = np.zeros((1, 7, 40), np.float32)
        for place in range(number):
            raw[0, :5, place] = 50 * place, 0, 50 * place + 9, 9, 0.9
        requests.append(InferRequest("1", "zdetector", (encode_tensor("raw", raw),)))
    done = service.run([service.prepare(request) for request in requests])
    counts = [len(service.finish(request, one.outputs)["boxes"]) for request, one in zip(requests, done, strict=True)]
    assert counts == [1, 3]


def test_a_mask_is_made_of_an_ensembles_logits(write_echo: WriteEcho) -> None:
    """An ensemble has its own tables; a member's count inside it as well."""
    write_echo("net", ("logits", "FP32", [-1, 4, 5, 6]))
    folder = write_echo("zchain") / "zchain"
    (folder / "1" / "model.echo").unlink()
    (folder / "model.toml").write_text("""
platform = "ensemble"
max_batch_size = 8
input = [{ name = "x", data_type = "TYPE_FP32", dims = [4, 5, 6] }]
output = [{ name = "y", data_type = "TYPE_FP32", dims = [4, 5, 6] }]
segmentation = { output = "y" }
[[ensemble_scheduling.step]]
model_name = "net"
model_version = -1
input_map = { logits = "x" }
output_map = { logits = "y" }
""")
    model = load(folder.parent)
    assert [(spec.name, spec.datatype, spec.shape) for spec in model.card.outputs] == [("y", "UINT8", (-1, 4, 5))]
    found = serve(model, x=LOGITS.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(found["y"], LOGITS.argmax(1))


def test_warming_up_runs_the_network_alone(detector: LoadedModel, segmenter: LoadedModel) -> None:
    """A batch of zeros is no batch of pictures."""
    for model in (detector, segmenter):
        network = network_of(model.backend)
        assert network is not model.backend
        warm_up(model.backend, model.card)
        assert network_of(network) is network
        model.backend.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Segmentation("mask"), "'mask': expected an output of floats with four axes; the outputs are a FP32"),
        (Segmentation("n"), "'n': expected an output of floats"),
        (Segmentation("a", Layout.NCHW), "layout = NCHW: means 1024 classes"),
    ],
)
def test_a_mask_of_what_is_no_logits(settings: Segmentation, words: str) -> None:
    """Said when the model is loaded, with what there is."""
    outputs = TensorSpec("a", Datatype.FP32, (-1, 1024, 2048, 19)), TensorSpec("n", Datatype.INT64, (-1,) * 4)
    with pytest.raises(ConfigError, match=words):
        ClassMask(settings, outputs)
    assert ClassMask(Segmentation("a"), outputs).makes[0].shape == (-1, 1024, 2048)


def test_a_version_with_the_argmax_in_its_graph(write_echo: WriteEcho) -> None:
    """The model's own table for logits has no effect if the output is a mask already."""
    model = load(write_echo("echo", ("logits", "UINT8", [-1, 4, 5]), config=SEGMENTATION))
    assert not isinstance(model.backend, Postprocessed)
    assert model.card.outputs == (TensorSpec("logits", Datatype.UINT8, (-1, 4, 5)),)


def test_both_at_once_and_names_that_are_taken(write_echo: WriteEcho) -> None:
    """What can't be is refused when the model is loaded; without either nothing is put before the network."""
    network = load(write_echo("echo", ("raw", "FP32", [-1, 7, 40]), ("boxes", "FP32", [-1, 4]))).backend
    with pytest.raises(ConfigError, match="expected only one"):
        with_postprocessing(
            network, ModelConfig(pictures=PictureConfig(segmentation=Segmentation("raw"), detection=Detection("raw")))
        )
    with pytest.raises(ConfigError, match="an output 'boxes' beside"):
        with_postprocessing(network, ModelConfig(pictures=PictureConfig(detection=Detection("raw"))))
    assert with_postprocessing(network, ModelConfig()) is network
    assert not isinstance(network, Postprocessed)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('[segmentation]\noutput = "logits"\nlayout = "NHW"', "layout must be NHWC or NCHW"),
        ("[segmentation]", "the key 'output' is missing"),
        ('[detection]\nboxes = "raw"\nscore_treshold = 1', "did you mean 'score_threshold'"),
        ('[detection]\nboxes = "raw"\niou_threshold = 3', "from 0 to 1"),
        ('[detection]\nboxes = "raw"\nbox_format = "yx"', "one of xyxy, cxcywh, xywh"),
    ],
)
def test_wrong_tables_are_named(write_echo: WriteEcho, config: str, words: str) -> None:
    """As every other table of model.toml."""
    with pytest.raises(ConfigError, match=words):
        load(write_echo("echo", ("logits", "FP32", [-1, 4, 4, 3]), config=config))
