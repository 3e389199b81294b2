"""Reduces precision: INT8 by calibration, FP16 by casting the weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from mqinfer.extras import import_extra
from mqinfer.lab.conversion import import_onnx
from mqinfer.models.backends.onnx import import_onnxruntime
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelNotLoadable

Calibration = Sequence[Mapping[str, Array]]
"""Inputs of a model by name, one mapping for each run."""


def int8_openvino(model: Any, calibration: Calibration) -> Any:
    """Quantise an OpenVINO model with NNCF: symmetric weights per channel, activations by their observed range.

    Raises:
        MissingExtra: nncf is not installed.
        ModelNotLoadable: NNCF failed.
    """
    with no_telemetry():
        nncf = import_extra("nncf", "optimize")
    nncf.set_log_level("ERROR")
    with failing("NNCF"), redirect_stdout(StringIO()):  # its progress bars
        return nncf.quantize(model, nncf.Dataset(list(calibration)), subset_size=len(calibration))


def int8_onnx(source: Path, calibration: Calibration, path: Path) -> None:
    """Quantise an ONNX file with QDQ nodes: uint8 activations, int8 weights per channel.

    Raises:
        MissingExtra: onnxruntime is not installed.
        ModelNotLoadable: Its quantiser failed.
    """
    quantization = _quantization()
    with failing("ONNX Runtime's quantiser"):
        # Infers shapes, without which fewer nodes would be quantised.
        quantization.quant_pre_process(str(source), str(path), skip_optimization=True, skip_symbolic_shape=True)
        quantization.quantize_static(
            str(path),
            str(path),
            _Reader(iter(calibration)),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )


def half_onnx(source: Path, path: Path) -> None:
    """Cast an ONNX file's weights and operations to FP16; inputs and outputs keep their types.

    Raises:
        MissingExtra: onnxruntime is not installed.
        ModelNotLoadable: The conversion failed.
    """
    _quantization()
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx = import_onnx()
    with failing("ONNX Runtime's FP16 converter"):
        model = convert_float_to_float16(onnx.load(str(source)), keep_io_types=True)
    onnx.save(model, str(path))


@contextmanager
def no_telemetry() -> Iterator[None]:
    """Disable the usage reports that OpenVINO's converter and NNCF send over the network by default."""
    names = ("CI", "NNCF_CI")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "true"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _quantization() -> Any:
    import_onnxruntime()
    return import_extra("onnxruntime.quantization", "optimize")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Calibration samples for ONNX Runtime's quantiser (its `CalibrationDataReader`)."""

    samples: Iterator[Mapping[str, Array]]

    def get_next(self) -> Mapping[str, Array] | None:
        """Return the next sample; None at the end."""
        return next(self.samples, None)


@contextmanager
def failing(tool: str) -> Iterator[None]:
    """Convert any exception of a tool to ModelNotLoadable with the tool's name."""
    try:
        yield
    except Exception as error:  # these tools document no exceptions
        raise ModelNotLoadable(f"{tool} can't convert it: {str(error) or type(error).__name__}") from error
