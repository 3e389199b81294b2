"""What `mqinfer models build` can build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mqinfer.models.zoo import drive_segmentation, seeds, small_models
from mqinfer.protocol.card import ClassInfo

__all__ = ["CATALOGUE", "Entry", "Trained"]

_CITYSCAPES = tuple(
    ClassInfo(name, colour)
    for name, colour in (
        ("road", (128, 64, 128)),
        ("sidewalk", (244, 35, 232)),
        ("building", (70, 70, 70)),
        ("wall", (102, 102, 156)),
        ("fence", (190, 153, 153)),
        ("pole", (153, 153, 153)),
        ("traffic light", (250, 170, 30)),
        ("traffic sign", (220, 220, 0)),
        ("vegetation", (107, 142, 35)),
        ("terrain", (152, 251, 152)),
        ("sky", (70, 130, 180)),
        ("person", (220, 20, 60)),
        ("rider", (255, 0, 0)),
        ("car", (0, 0, 142)),
        ("truck", (0, 0, 70)),
        ("bus", (0, 60, 100)),
        ("train", (0, 80, 100)),
        ("motorcycle", (0, 0, 230)),
        ("bicycle", (119, 11, 32)),
    )
)
"""The 19 training classes of Cityscapes, in the order of their train ids, with the data set's own colours."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What training left: a file of weights, and how many classes they tell apart."""

    weights: Path
    classes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the zoo.

    Attributes:
        purpose: What it is, in a line.
        write: Fills the version folder; gets what was trained where `trained`, else None.
        trained: Whether it stands on the weights that are trained on synthetic drives; its classes are the drives'.
        config: Top of its `model.toml`.
        classes: Of its mask.
    """

    purpose: str
    write: Callable[[Trained | None, Path], None]
    trained: bool = False
    config: str = ""
    classes: tuple[ClassInfo, ...] = ()


def _trained(write: Callable[[Path, int, Path], None]) -> Callable[[Trained | None, Path], None]:
    def checked(trained: Trained | None, folder: Path) -> None:
        if trained is None:
            raise ValueError("a trained model needs its weights")
        write(trained.weights, trained.classes, folder)

    return checked


def _untrained(write: Callable[[Path], None]) -> Callable[[Trained | None, Path], None]:
    return lambda _, folder: write(folder)


def _small(write: Callable[[Path], None]) -> Callable[[Trained | None, Path], None]:
    return lambda _, folder: write(folder / "model.onnx")


_ALONE = "max_batch_size = 1  # a large picture gains nothing from a batch on a CPU\n"
_DRIVE = f"""{_ALONE}
[image]
input = "input"
width = {drive_segmentation.WIDTH}
height = {drive_segmentation.HEIGHT}
"""

CATALOGUE: Mapping[str, Entry] = {
    "drive_segmentation": Entry(
        "small segmentation network, trained on synthetic drives, 968x608, frozen graph",
        _trained(drive_segmentation.write_graph),
        trained=True,
        config=_DRIVE,
    ),
    "drive_segmentation_savedmodel": Entry(
        "the same as a SavedModel",
        _trained(drive_segmentation.write_saved),
        trained=True,
        config=_DRIVE,
    ),
    "drive_segmentation_onnx": Entry(
        "the same as ONNX",
        _trained(drive_segmentation.write_onnx_file),
        trained=True,
        config=_DRIVE,
    ),
    "mobilenet_v3_small_968_608_os8": Entry(
        "MobileNetV3-small, output stride 8, 968x608, frozen graph, random weights",
        _untrained(seeds.write_mobilenet_small),
        config=_ALONE,
        classes=_CITYSCAPES,
    ),
    "mobilenet_v3_large_968_608_os8": Entry(
        "MobileNetV3-large, output stride 8, 968x608, frozen graph, random weights",
        _untrained(seeds.write_mobilenet_large),
        config=_ALONE,
        classes=_CITYSCAPES,
    ),
    "mobilenetv3_large_os8_deeplabv3plus": Entry(
        "DeepLabV3+ on MobileNetV3-large, output stride 8, 2048x1024, SavedModel, logits out, random weights",
        _untrained(seeds.write_deeplab),
        config=_ALONE,
        classes=_CITYSCAPES,
    ),
    "encoder_decoder_2048_1024": Entry(
        "encoder-decoder, 2048x1024, SavedModel, logits out, random weights",
        _untrained(seeds.write_encoder_decoder),
        config=_ALONE,
        classes=_CITYSCAPES,
    ),
    "classifier_224": Entry(
        "MobileNetV2 classifier at half width, 3x224x224, ONNX, random weights",
        _small(small_models.write_classifier_224),
    ),
    "small_16": Entry("one dense layer of 16, ONNX, for measurements", _small(small_models.write_small_16)),
    "frame_mask": Entry(
        "968x608 picture to a mask for next to no work, ONNX, for measurements", _small(small_models.write_frame_mask)
    ),
    "vae_like": Entry("convolutional autoencoder, ONNX, for measurements", _small(small_models.write_vae_like)),
}
"""Every model by its name in the repository."""
