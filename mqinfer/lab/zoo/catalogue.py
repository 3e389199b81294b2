"""The models that `mqinfer models build` can build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mqinfer.lab.zoo import segmentation_models, small_models
from mqinfer.lab.zoo.classes import CITYSCAPES, COCO
from mqinfer.lab.zoo.export import Network, write_frozen_graph, write_onnx, write_saved_model
from mqinfer.lab.zoo.networks import drive_segmentation
from mqinfer.lab.zoo.networks.classifiers import CLASSES, mobilenet_network, noscope_network
from mqinfer.lab.zoo.networks.jet_models import conv_vae_network, graph_vae_network
from mqinfer.lab.zoo.networks.yolo_v2 import yolo_network, yolo_suppressed_network
from mqinfer.models.repository.config_keys import class_colour
from mqinfer.protocol.card import ClassInfo

__all__ = ["CATALOGUE", "TrainedWeights", "ZooModel"]


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """Result of training: file of the weights, and number of classes."""

    weights: Path
    classes: int


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One model of the zoo.

    Attributes:
        purpose: Description in one line.
        write: Writes the version folder, from the trained weights if `trained`, else from None.
        trained: Whether it uses the weights trained on synthetic drives, and their classes.
        config: Start of its `model.toml`.
        classes: Classes of its outputs.
    """

    purpose: str
    write: Callable[[TrainedWeights | None, Path], None]
    trained: bool = False
    config: str = ""
    classes: tuple[ClassInfo, ...] = ()


def _trained(write: Callable[[Path, int, Path], None]) -> Callable[[TrainedWeights | None, Path], None]:
    def checked(trained: TrainedWeights | None, folder: Path) -> None:
        if trained is None:
            raise ValueError("a trained model needs its weights")
        write(trained.weights, trained.classes, folder)

    return checked


def _untrained(write: Callable[[Path], None]) -> Callable[[TrainedWeights | None, Path], None]:
    return lambda _, folder: write(folder)


def _small(write: Callable[[Path], None]) -> Callable[[TrainedWeights | None, Path], None]:
    return lambda _, folder: write(folder / "model.onnx")


def _frozen(make: Callable[[], Network]) -> Callable[[TrainedWeights | None, Path], None]:
    return lambda _, folder: write_frozen_graph(make(), folder / "model.pb")


def _saved(make: Callable[[], Network]) -> Callable[[TrainedWeights | None, Path], None]:
    return lambda _, folder: write_saved_model(make(), folder / "model.savedmodel")


def _onnx(make: Callable[[], Network]) -> Callable[[TrainedWeights | None, Path], None]:
    return lambda _, folder: write_onnx(make(), folder / "model.onnx")


def _each_format(
    name: str, purpose: str, make: Callable[[], Network], config: str = "", classes: tuple[ClassInfo, ...] = ()
) -> dict[str, ZooModel]:
    return {
        name: ZooModel(f"{purpose}, frozen graph", _frozen(make), config=config, classes=classes),
        f"{name}_savedmodel": ZooModel("the same as a SavedModel", _saved(make), config=config, classes=classes),
        f"{name}_onnx": ZooModel("the same as ONNX", _onnx(make), config=config, classes=classes),
    }


_UNNAMED = tuple(ClassInfo(f"class {number}", class_colour(number % 256)) for number in range(CLASSES))
"""Classes of a network with random weights have numbers only."""
_JETS = "max_batch_size = 256\n"
_ALONE = "max_batch_size = 1  # a large picture gains nothing from a batch on a CPU\n"


def _drive(width: int, height: int) -> str:
    return f'{_ALONE}\n[image]\ninput = "input"\nwidth = {width}\nheight = {height}\n'


_DRIVE = _drive(drive_segmentation.WIDTH, drive_segmentation.HEIGHT)

CATALOGUE: Mapping[str, ZooModel] = {
    "drive_segmentation": ZooModel(
        "small segmentation network, trained on synthetic drives, 968x608, frozen graph",
        _trained(drive_segmentation.write_graph),
        trained=True,
        config=_DRIVE,
    ),
    "drive_segmentation_savedmodel": ZooModel(
        "the same as a SavedModel",
        _trained(drive_segmentation.write_saved),
        trained=True,
        config=_DRIVE,
    ),
    "drive_segmentation_onnx": ZooModel(
        "the same as ONNX",
        _trained(drive_segmentation.write_onnx_file),
        trained=True,
        config=_DRIVE,
    ),
    "drive_segmentation_2048_1024_onnx": ZooModel(
        "the same network for 2048x1024, ONNX",
        _trained(drive_segmentation.write_large_onnx),
        trained=True,
        config=_drive(drive_segmentation.LARGE_WIDTH, drive_segmentation.LARGE_HEIGHT),
    ),
    "mobilenet_v3_small_968_608_os8": ZooModel(
        "MobileNetV3-small, output stride 8, 968x608, frozen graph, random weights",
        _untrained(segmentation_models.write_mobilenet_small),
        config=_ALONE,
        classes=CITYSCAPES,
    ),
    "mobilenet_v3_large_968_608_os8": ZooModel(
        "MobileNetV3-large, output stride 8, 968x608, frozen graph, random weights",
        _untrained(segmentation_models.write_mobilenet_large),
        config=_ALONE,
        classes=CITYSCAPES,
    ),
    "mobilenetv3_large_os8_deeplabv3plus": ZooModel(
        "DeepLabV3+ on MobileNetV3-large, output stride 8, 2048x1024, SavedModel, logits out, random weights",
        _untrained(segmentation_models.write_deeplab),
        config=_ALONE,
        classes=CITYSCAPES,
    ),
    "encoder_decoder_2048_1024": ZooModel(
        "encoder-decoder, 2048x1024, SavedModel, logits out, random weights",
        _untrained(segmentation_models.write_encoder_decoder),
        config=_ALONE,
        classes=CITYSCAPES,
    ),
    **_each_format(
        "conv_vae",
        "Conv-VAE of 100 particles with anomaly scores, trained for seconds on synthetic jets",
        conv_vae_network,
        _JETS,
    ),
    **_each_format(
        "graph_vae",
        "graph Conv-VAE of 100 particles and their neighbours with anomaly scores, trained likewise",
        graph_vae_network,
        _JETS,
    ),
    **_each_format(
        "noscope_50",
        "NoScope's specialised network, 50x50 to the confidence that an object is there, random weights",
        noscope_network,
        "max_batch_size = 64\n",
    ),
    **_each_format(
        "mobilenet_224",
        "MobileNet classifier of 1000 classes, 224x224, random weights",
        mobilenet_network,
        "max_batch_size = 64\n",
        _UNNAMED,
    ),
    "yolo_v2_608": ZooModel(
        "YOLOv2 with its decoder, 608x608 to 1805 boxes, scores and classes, frozen graph, random weights",
        _frozen(yolo_network),
        config="max_batch_size = 8\n",
        classes=COCO,
    ),
    "yolo_v2_608_nms": ZooModel(
        "the same with non-maximum suppression, at most 100 boxes and their count, SavedModel",
        _saved(yolo_suppressed_network),
        config="max_batch_size = 8\n",
        classes=COCO,
    ),
    "classifier_224": ZooModel(
        "MobileNetV2 classifier at half width, 3x224x224, ONNX, random weights",
        _small(small_models.write_classifier_224),
    ),
    "small_16": ZooModel("one dense layer of 16, ONNX, for measurements", _small(small_models.write_small_16)),
    "frame_mask": ZooModel(
        "968x608 picture to a mask at very little cost, ONNX, for measurements", _small(small_models.write_frame_mask)
    ),
    "vae_like": ZooModel("convolutional autoencoder, ONNX, for measurements", _small(small_models.write_vae_like)),
}
"""All models, by their name in the repository."""
