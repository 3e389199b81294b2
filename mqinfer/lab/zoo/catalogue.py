"""The models that `mqinfer models build` can build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mqinfer.lab.zoo.classes import CITYSCAPES, COCO
from mqinfer.lab.zoo.export import Network
from mqinfer.lab.zoo.networks.classifiers import CLASSES, mobilenet_network, noscope_network
from mqinfer.lab.zoo.networks.drive_net import drive_segmentation
from mqinfer.lab.zoo.networks.jet_models import conv_vae_network, graph_vae_network
from mqinfer.lab.zoo.networks.segmentation import deeplab_v3_plus, encoder_decoder, logits_network, mask_network
from mqinfer.lab.zoo.networks.yolo_v2 import yolo_network, yolo_suppressed_network
from mqinfer.lab.zoo.onnx_graph import OnnxGraph
from mqinfer.lab.zoo.small_models import classifier_224, frame_mask, small_16, vae_like
from mqinfer.models.repository.config_keys import class_colour
from mqinfer.protocol.card import ClassInfo


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
        file: Name of its file, whose suffix is the format.
        make: Makes the network, from the trained weights if `trained`, else from None.
        trained: Whether it uses the weights trained on synthetic drives, and their classes.
        config: Start of its `model.toml`.
        classes: Classes of its outputs.
    """

    purpose: str
    file: str
    make: Callable[[TrainedWeights | None], Network | OnnxGraph]
    trained: bool = False
    config: str = ""
    classes: tuple[ClassInfo, ...] = ()


GRAPH, SAVED, ONNX = "model.pb", "model.savedmodel", "model.onnx"
_ALONE = "max_batch_size = 1  # a large picture gains nothing from a batch on a CPU\n"


def _drive(purpose: str, file: str, size: tuple[int, int] = (608, 968)) -> ZooModel:
    """Return the trained network for pictures of this height and width."""

    def make(trained: TrainedWeights | None) -> Network:
        if trained is None:
            raise ValueError("a trained model needs its weights")
        return drive_segmentation(trained.weights, trained.classes, size)

    config = f'{_ALONE}\n[image]\ninput = "input"\nwidth = {size[1]}\nheight = {size[0]}\n'
    return ZooModel(purpose, file, make, trained=True, config=config)


def _segmentation(purpose: str, file: str, make: Callable[[], Network]) -> ZooModel:
    return ZooModel(f"{purpose}, random weights", file, lambda _: make(), config=_ALONE, classes=CITYSCAPES)


def _each_format(
    name: str, purpose: str, make: Callable[[], Network], config: str = "", classes: tuple[ClassInfo, ...] = ()
) -> dict[str, ZooModel]:
    forms = {
        name: ("frozen graph", GRAPH),
        f"{name}_savedmodel": ("SavedModel", SAVED),
        f"{name}_onnx": ("ONNX", ONNX),
    }
    return {
        each: ZooModel(f"{purpose}, {form}", file, lambda _: make(), config=config, classes=classes)
        for each, (form, file) in forms.items()
    }


_UNNAMED = tuple(ClassInfo(f"class {number}", class_colour(number % 256)) for number in range(CLASSES))
"""Classes of a network with random weights have numbers only."""
_JETS = "max_batch_size = 256\n"
_STREETS = "small segmentation network, trained on synthetic drives"

CATALOGUE: Mapping[str, ZooModel] = {
    "drive_segmentation": _drive(f"{_STREETS}, 968x608, frozen graph", GRAPH),
    "drive_segmentation_savedmodel": _drive(f"{_STREETS}, 968x608, SavedModel", SAVED),
    "drive_segmentation_onnx": _drive(f"{_STREETS}, 968x608, ONNX", ONNX),
    "drive_segmentation_2048_1024_onnx": _drive(f"{_STREETS}, 2048x1024, ONNX", ONNX, (1024, 2048)),
    "mobilenet_v3_small_968_608_os8": _segmentation(
        "MobileNetV3-small, output stride 8, 968x608, frozen graph", GRAPH, lambda: mask_network("small")
    ),
    "mobilenet_v3_large_968_608_os8": _segmentation(
        "MobileNetV3-large, output stride 8, 968x608, frozen graph", GRAPH, lambda: mask_network("large")
    ),
    "mobilenetv3_large_os8_deeplabv3plus": _segmentation(
        "DeepLabV3+ on MobileNetV3-large, output stride 8, 2048x1024, SavedModel, logits out",
        SAVED,
        lambda: logits_network(deeplab_v3_plus()),
    ),
    "encoder_decoder_2048_1024": _segmentation(
        "encoder-decoder, 2048x1024, SavedModel, logits out", SAVED, lambda: logits_network(encoder_decoder())
    ),
    **_each_format(
        "conv_vae",
        "Conv-VAE of 100 particles with anomaly scores, trained for seconds on synthetic jets",
        conv_vae_network,
        _JETS,
    ),
    **{
        f"conv_vae_{latent}": ZooModel(
            f"Conv-VAE with {latent} latent variables, trained for seconds on synthetic jets, frozen graph",
            GRAPH,
            lambda _, latent=latent: conv_vae_network(latent),  # type: ignore[misc] # the default binds the number
            config=_JETS,
        )
        for latent in (6, 12)
    },
    **_each_format(
        "graph_vae",
        "graph Conv-VAE of 100 particles and their neighbours with anomaly scores, trained for seconds on jets",
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
        GRAPH,
        lambda _: yolo_network(),
        config="max_batch_size = 8\n",
        classes=COCO,
    ),
    "yolo_v2_608_nms": ZooModel(
        "YOLOv2 with non-maximum suppression, 608x608 to at most 100 boxes, SavedModel, random weights",
        SAVED,
        lambda _: yolo_suppressed_network(),
        config="max_batch_size = 8\n",
        classes=COCO,
    ),
    "classifier_224": ZooModel(
        "MobileNetV2 classifier at half width, 3x224x224, ONNX, random weights", ONNX, lambda _: classifier_224()
    ),
    "small_16": ZooModel("one dense layer of 16, ONNX, for measurements", ONNX, lambda _: small_16()),
    "frame_mask": ZooModel(
        "968x608 picture to a mask at very little cost, ONNX, for measurements", ONNX, lambda _: frame_mask()
    ),
    "vae_like": ZooModel("convolutional autoencoder, ONNX, for measurements", ONNX, lambda _: vae_like()),
}
"""All models, by their name in the repository."""
