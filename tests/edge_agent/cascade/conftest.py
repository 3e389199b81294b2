"""Models that look at brightness alone, and an edge with them; see `rig`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.client.requester import Requester
from mqinfer.cloud_worker.serving.worker import Worker
from tests.edge_agent.cascade.rig import HEIGHT, WIDTH, Rig
from tests.onnx_files import save_onnx

CLASSES = '[[classes]]\nname = "none"\n[[classes]]\nname = "car"\n'


def _save(
    path: Path, nodes: list[Any], shape: list[Any], outputs: list[tuple[str, int, list[Any]]], **values: Any
) -> None:
    ends = {name: (kind, sizes) for name, kind, sizes in outputs}
    save_onnx(path, nodes, {"image": (1, shape)}, ends, values)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository: `yolo` and `is-car` for a target; `seg` and `small-seg` for masks of bright pixels."""
    from onnx import helper

    node, folder = helper.make_node, tmp_path_factory.mktemp("models")
    mean = node("ReduceMean", ["image"], ["mean"], axes=[1, 2, 3], keepdims=0)
    share = node("Mul", ["mean", "factor"], ["share"])
    column = node("Unsqueeze", ["share", "axis"], ["confidence"])
    common = {"factor": np.float32(1 / 255), "axis": np.array([1], np.int64)}
    _save(
        folder / "is-car/1/model.onnx",
        [mean, share, column],
        ["n", 50, 50, 3],
        [("confidence", 1, ["n", 1])],
        **common,
    )
    sharp = [
        node("Sub", ["confidence", "half"], ["centred"]),
        node("Mul", ["centred", "slope"], ["steep"]),
        node("Sigmoid", ["steep"], ["car"]),
        node("Sub", ["one", "car"], ["none"]),
        node("Concat", ["none", "car"], ["scores"], axis=1),
    ]
    constants = {"half": np.float32(0.5), "slope": np.float32(200.0), "one": np.float32(1.0)}
    _save(
        folder / "yolo/1/model.onnx",
        [mean, share, column, *sharp],
        ["n", HEIGHT, WIDTH, 3],
        [("scores", 1, ["n", 2])],
        **common,
        **constants,
    )
    grey = node("ReduceMean", ["image"], ["grey"], axes=[3], keepdims=1)
    lit = [node("Greater", ["grey", "middle"], ["lit"]), node("Cast", ["lit"], ["mask"], to=2)]
    _save(
        folder / "seg/1/model.onnx",
        [grey, *lit],
        ["n", HEIGHT, WIDTH, 3],
        [("mask", 2, ["n", HEIGHT, WIDTH, 1])],
        middle=np.float32(127.5),
    )
    logits = [
        node("Sub", ["grey", "middle"], ["centred"]),
        node("Mul", ["centred", "slope"], ["bright"]),
        node("Neg", ["bright"], ["dark"]),
        node("Concat", ["dark", "bright"], ["logits"], axis=3),
    ]
    _save(
        folder / "small-seg/1/model.onnx",
        [grey, *logits],
        ["n", 50, 50, 3],
        [("logits", 1, ["n", 50, 50, 2])],
        middle=np.float32(127.5),
        slope=np.float32(0.1),
    )
    for name in ("yolo", "seg", "small-seg"):
        (folder / name / "model.toml").write_text(CLASSES)
    return folder


@pytest.fixture
def rig(url: str, models: Path, serve: Callable[..., Worker], edge: Callable[..., Requester]) -> Rig:
    """An edge on an in-memory broker, which waits for models that its tests start."""
    return Rig(url, models, edge(window=8, patience=0.1, settling=0.1), serve)
