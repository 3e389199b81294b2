from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mqinfer import Client
from tests.onnx_files import save_onnx

pytestmark = [pytest.mark.broker, pytest.mark.slow]
Started = tuple[subprocess.Popen[str], str]


@pytest.fixture
def repository(tf: Any, save_tf1: Callable[..., Path], tmp_path: Path) -> Path:
    """One model for ONNX Runtime and one for TensorFlow: y = x + x."""
    nodes, end = [helper.make_node("Add", ["x", "x"], ["y"])], (TensorProto.FLOAT, ["n", 2])
    save_onnx(tmp_path / "by_onnx" / "1" / "model.onnx", nodes, {"x": end}, {"y": end})

    def build(v1: Any) -> tuple[dict[str, Any], None]:
        given = v1.placeholder(tf.float32, [None, 2], name="x")
        factor = v1.Variable(2.0)
        return {"serving_default": v1.saved_model.predict_signature_def({"x": given}, {"y": given * factor})}, None

    save_tf1(tmp_path / "by_tensorflow" / "1", build)
    return tmp_path


@pytest.fixture
def worker(repository: Path, broker_url: str, unique: Callable[[str], str]) -> Iterator[Started]:
    """The command with `--device cuda`, as a user starts it."""
    root = unique("test")
    command = [sys.executable, "-m", "mqinfer", "worker", "--repository", str(repository), "--device", "cuda"]
    settings = ["--root", root, "--broker", broker_url]
    process = subprocess.Popen([*command, *settings], stderr=subprocess.PIPE, text=True)
    yield process, root
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(worker: Started, broker_url: str) -> None:
    """`--device cuda` without a GPU: each model logs one warning and one line on what runs, and serves on the CPU."""
    process, root = worker
    lines: list[str] = []
    assert process.stderr is not None
    while sum(" ready: " in line for line in lines) < 2:
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    with Client(broker_url, root=root) as client:
        for model in ("by_onnx", "by_tensorflow"):
            warnings = [line for line in lines if " WARNING " in line and f": {model} version 1: " in line]
            assert len(warnings) == 1, lines
            assert "requested but not available: cuda:0" in warnings[0]
            assert warnings[0].rstrip().endswith("running on cpu")
            assert sum(f" ready: {model} version 1" in line and line.rstrip().endswith("on cpu") for line in lines) == 1
            result = client.infer(model, {"x": np.array([[1, 2]], np.float32)}, timeout=30)
            assert result.outputs["y"].tolist() == [[2, 4]]
            assert client.card(model).parameters.device == "cpu"
