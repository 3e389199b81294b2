"""As many labels as classes, or the model is refused with both numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mqinfer.models.loading import load_model
from mqinfer.models.postprocess.stage import check_labels
from mqinfer.models.repository import Repository
from mqinfer.models.repository.config import ModelConfig, PictureConfig, TensorConfig
from mqinfer.models.repository.output_tables import Classification, Segmentation
from mqinfer.protocol.card import ClassInfo, Layout
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec
from tests.models.conftest import WriteOnnx

LOGITS = Segmentation("y", Layout.NCHW)


def labelled(config: ModelConfig, count: int) -> ModelConfig:
    """Add labels."""
    classes = tuple(ClassInfo(f"class {number}", (0, 0, 0)) for number in range(count))
    return replace(config, pictures=replace(config.pictures, classes=classes))


def outputs(*shapes: tuple[int, ...], datatype: Datatype = Datatype.FP32) -> tuple[TensorSpec, ...]:
    """Make outputs `y`, `z`, … of these shapes."""
    return tuple(TensorSpec(name, datatype, shape) for name, shape in zip("yz", shapes, strict=False))


@pytest.mark.parametrize(
    ("specs", "config"),
    [
        (outputs((-1, 5)), ModelConfig()),
        (outputs((5,)), ModelConfig()),
        (outputs((1, 5, 1, 1)), ModelConfig()),
        (outputs((-1, 5), (-1, 64)), ModelConfig(output=(TensorConfig("y", label_filename="labels.txt"),))),
        (outputs((-1, 5), datatype=Datatype.UINT8), ModelConfig(output=(TensorConfig("y", label_filename="l"),))),
        (outputs((-1, 5), (-1, 64)), ModelConfig(pictures=PictureConfig(classification=Classification("y")))),
        (outputs((1, 5, 480, 640)), ModelConfig(pictures=PictureConfig(segmentation=LOGITS))),
        (outputs((1, 480, 640, 5)), ModelConfig(pictures=PictureConfig(segmentation=Segmentation("y")))),
    ],
)
@pytest.mark.parametrize(("labels", "hint"), [(4, "put a label for it first"), (6, "remove its label"), (9, "class$")])
def test_labels_that_do_not_match(specs: tuple[TensorSpec, ...], config: ModelConfig, labels: int, hint: str) -> None:
    """Both numbers, and the background class where they differ by one."""
    check_labels(specs, labelled(config, 5))
    with pytest.raises(ConfigError, match=rf"{labels} labels.*output 'y' .* has 5 classes: .*{hint}"):
        check_labels(specs, labelled(config, labels))


@pytest.mark.parametrize(
    "specs",
    [
        outputs((-1, -1)),
        outputs((1, 480, 640), datatype=Datatype.UINT8),
        outputs((-1, 7), (-1, 64)),
        outputs((1, 100, 7)),
        outputs((-1, 7), datatype=Datatype.INT64),
        outputs(),
    ],
)
def test_classes_that_a_file_does_not_count(specs: tuple[TensorSpec, ...]) -> None:
    """Open axes, masks, several outputs, boxes: any number of labels is fine."""
    check_labels(specs, labelled(ModelConfig(), 5))


def test_a_model_with_labels_of_another_network(write_onnx: WriteOnnx, repository: Path) -> None:
    """It is refused when it is loaded; empty lines at the file's end are no labels."""
    write_onnx(repository / "net" / "1" / "model.onnx", shape=("n", 3))
    (repository / "net" / "model.toml").write_text('[[output]]\nname = "y"\nlabel_filename = "labels.txt"')
    labels = repository / "net" / "labels.txt"
    labels.write_text("car\nbus\n\n\n")
    with pytest.raises(ConfigError, match=r"model net version 1: .*2 labels .*output 'y' \[-1, 3\] has 3 classes"):
        load_model(Repository(repository).find("net"))
    labels.write_text("car\nbus\ntram\n\n")
    assert [each.name for each in load_model(Repository(repository).find("net")).card.classes] == ["car", "bus", "tram"]
