"""Makes products: complete version folders, each a fused graph in one engine's format and one precision.

Their `model.toml` has what differs from the model's own configuration.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from mqinfer.extras import check_packages, import_extra
from mqinfer.lab.optimize.fusing import Fused
from mqinfer.lab.optimize.quantise import Calibration, failing, half_onnx, int8_onnx, int8_openvino, no_telemetry
from mqinfer.models.repository import ModelVersion
from mqinfer.models.repository.config_files import CONFIG_FILE, CONFIG_FILES, combine, read_layer, with_named_files
from mqinfer.models.repository.tables import as_toml, toml_key
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Scalar
from mqinfer.toml_files import parse_toml, read_text


def override_toml(original: ModelVersion, fused: Fused, keys: Mapping[str, Any]) -> str:
    """Return the keys of a product merged over those of the original version, as TOML.

    Args:
        original: Version that the product was made from.
        fused: New image contract and outputs.
        keys: Keys of the product.
    """
    own = original.folder / CONFIG_FILE
    layer: dict[str, Any] = parse_toml(read_text(own)) if own.exists() else {}
    layer.pop("platform", None)
    layer |= keys
    if fused.image is not None:
        layer["image"] = {key: value for key, value in structs.asdict(fused.image).items() if value is not None}
        layer["input"] = []  # drop the settings of the float input
    if fused.argmax and original.config.output:
        layer["output"] = []  # drop the settings of the logits
    lines = [f"{toml_key(key)} = {as_toml(value)}\n" for key, value in layer.items()]
    return f"# Made by `mqinfer models optimize` from version {original.version}.\n{''.join(lines)}"


ENGINES = ("onnx", "openvino")
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
_BACKENDS = {"onnx": "onnxruntime", "openvino": "openvino"}
_FILES = {"onnx": "model.onnx", "openvino": "model.xml"}
_IMPOSSIBLE = {("onnx", "bf16")}
"""ONNX Runtime's CPU kernels have no bfloat16."""
_BY_NNCF = ("openvino", "int8")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Engine and precision of a product.

    Attributes:
        engine: `onnx` or `openvino`.
        precision: `fp32`, `fp16`, `bf16` or `int8`.
        early: Whether the argmax is taken before the last resize.
    """

    engine: str
    precision: str
    early: bool = False

    @property
    def label(self) -> str:
        """Name of the product in tables and of its folder."""
        return f"{self.engine}-{self.precision}{'-early' if self.early else ''}"


def plan(engines: Sequence[str], precisions: Sequence[str], *, early: bool, calibrated: bool) -> tuple[Recipe, ...]:
    """Return the products to make.

    Args:
        engines: Some of `ENGINES`.
        precisions: Some of `PRECISIONS`; int8 is dropped without calibration samples.
        early: Whether to add products with the argmax before the last resize.
        calibrated: Whether there are calibration samples.

    Raises:
        ConfigError: An engine or precision is unknown, or nothing is left.
        MissingExtra: A package that makes one of them is not installed.
    """
    _check(engines, ENGINES)
    _check(precisions, PRECISIONS)
    wanted = [each for each in precisions if calibrated or each != "int8"]
    recipes = tuple(
        Recipe(engine, precision, late)
        for late in ((False, True) if early else (False,))
        for engine in engines
        for precision in wanted
        if (engine, precision) not in _IMPOSSIBLE
    )
    if not recipes:
        raise ConfigError(
            f"nothing to make for {', '.join(engines)} in {', '.join(precisions)}: int8 needs --calibrate or "
            "--samples, bf16 needs openvino"
        )
    _check_packages(recipes)
    return recipes


def _check_packages(recipes: Sequence[Recipe]) -> None:
    names = ["onnx", "onnxruntime"]
    if any(each.engine == "openvino" for each in recipes):
        names.append("openvino")
    if any((each.engine, each.precision) == _BY_NNCF for each in recipes):
        names.append("nncf")
    check_packages({name: name for name in names}, "optimize")


def _check(given: Sequence[str], known: Sequence[str]) -> None:
    if unknown := [each for each in given if each not in known]:
        raise ConfigError(f"{unknown[0]!r} is unknown; expected one of {', '.join(known)}")


def write_product(recipe: Recipe, fused: Fused, original: ModelVersion, calibration: Calibration, folder: Path) -> None:
    """Write a version folder atomically; an existing one of the same name is replaced.

    Raises:
        MissingExtra: openvino, nncf or onnxruntime is not installed.
        ModelNotLoadable: A converter or quantiser failed.
    """
    part = folder.with_name(f".part-{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        _WRITERS[recipe.engine](recipe.precision, fused.path, calibration, part / _FILES[recipe.engine])
        text = override_toml(original, fused, _keys(recipe, original))
        (part / CONFIG_FILE).write_text(text, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def product_version(original: ModelVersion, folder: Path) -> ModelVersion:
    """Return a product's folder as a version of the model: its configuration merged over the model's."""
    model_folder, own = original.folder.parent, read_layer(folder / CONFIG_FILE)
    layers = [*(read_layer(model_folder / name) for name in CONFIG_FILES), own]
    config = with_named_files(combine(layers), model_folder)
    return ModelVersion(original.name, original.version, folder / str(config.default_model_filename), config)


def _keys(recipe: Recipe, original: ModelVersion) -> dict[str, Any]:
    parameters: dict[str, Scalar] = {k: v for k, v in original.config.parameters.items() if k != "signature"}
    # CPUs compute with half-precision weights in fp32, since their fp16 is slower.
    parameters["precision"] = "fp32" if recipe.precision == "fp16" and recipe.engine == "openvino" else recipe.precision
    if recipe.engine == "openvino" and recipe.precision == "int8" and has_bf16():
        parameters["INFERENCE_PRECISION_HINT"] = "bf16"  # for the layers that stay in floating point
    return {
        "backend": _BACKENDS[recipe.engine],
        "default_model_filename": _FILES[recipe.engine],
        "parameters": parameters,
    }


def has_bf16() -> bool:
    """Whether this CPU supports bfloat16."""
    return "BF16" in _openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _write_onnx(precision: str, source: Path, calibration: Calibration, path: Path) -> None:
    if precision == "int8":
        int8_onnx(source, calibration, path)
    elif precision == "fp16":
        half_onnx(source, path)
    else:
        shutil.copyfile(source, path)


def _write_openvino(precision: str, source: Path, calibration: Calibration, path: Path) -> None:
    openvino = _openvino()
    with no_telemetry(), failing("OpenVINO"):
        model = openvino.convert_model(source)
    if precision == "int8":
        model = int8_openvino(model, calibration)
    with failing("OpenVINO"):
        openvino.save_model(model, path, compress_to_fp16=precision != "fp32")


_WRITERS = {"onnx": _write_onnx, "openvino": _write_openvino}


def _openvino() -> Any:
    return import_extra("openvino", "optimize")
