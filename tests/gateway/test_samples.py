"""The image clients of Triton and of OpenVINO Model Server, unmodified, as their projects publish them.

`MQINFER_SAMPLES` names a folder with clones of both projects: `client` of triton-inference-server, and `model_server`
of openvinotoolkit. Nothing fetches them, so `scripts/test --full` leaves this out where there are none.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.gateway.conftest import Fleet, serve_repository
from tests.gateway.models import build_repository
from tests.gateway.test_process import Running, running, settings_of
from tests.patience import PATIENCE_S

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif("MQINFER_SAMPLES" not in os.environ, reason="MQINFER_SAMPLES names no clones of the clients"),
]
PICTURES = "preprocess_inception_ensemble"
DENSENET = ["-m", "densenet_onnx", "-c", "2", "-s", "INCEPTION"]
OVMS = ["--model_name", PICTURES, "--input_name", "INPUT", "--output_name", "OUTPUT"]
RUNS = {
    "HTTP": ["image_client.py", *DENSENET, "-u", "{http}", "{picture}"],
    "HTTP, asynchronous": ["image_client.py", *DENSENET, "-a", "-u", "{http}", "{picture}"],
    "gRPC": ["image_client.py", *DENSENET, "-i", "grpc", "-u", "{grpc}", "{picture}"],
    "gRPC, asynchronous": ["image_client.py", *DENSENET, "-a", "-i", "grpc", "-u", "{grpc}", "{picture}"],
    "stream": ["image_client.py", *DENSENET, "-a", "--streaming", "-i", "grpc", "-u", "{grpc}", "{picture}"],
    "messages": ["grpc_image_client.py", *DENSENET, "-u", "{grpc}", "{picture}"],
    "messages in a stream": ["grpc_image_client.py", *DENSENET, "--streaming", "-u", "{grpc}", "{picture}"],
    "pictures by HTTP": ["ensemble_image_client.py", "-c", "2", "-u", "{http}", "{picture}"],
    "pictures by gRPC": ["ensemble_image_client.py", "-c", "2", "-i", "grpc", "-u", "{grpc}", "{picture}"],
    "OVMS by HTTP": ["http_infer_binary_resnet.py", *OVMS, "--http_port", "{http_port}", "--images_list", "{list}"],
    "OVMS by gRPC": ["grpc_infer_binary_resnet.py", *OVMS, "--grpc_port", "{grpc_port}", "--images_list", "{list}"],
}


def write_classifier(folder: Path) -> None:
    """Write a model that takes pictures, under the name that Triton's ensemble has."""
    from onnx import TensorProto, helper

    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("INPUT", ["n", 3, 8, 8]), ("OUTPUT", ["n", 3]))
    ]
    nodes = [
        helper.make_node("GlobalAveragePool", ["INPUT"], ["means"]),
        helper.make_node("Flatten", ["means"], ["OUTPUT"]),
    ]
    graph = helper.make_graph(nodes, "means", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(made.SerializeToString())
    (folder / "model.toml").write_text(
        'max_batch_size = 8\nimage = { input = "INPUT", layout = "NCHW" }\n'
        'classes = [{ name = "RED" }, { name = "GREEN" }, { name = "BLUE" }]\n'
    )


@pytest.fixture(scope="module")
def samples(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Serve densenet_onnx as in Triton's quick start, and a classifier of pictures."""
    repository = build_repository(tmp_path_factory.mktemp("samples"))
    write_classifier(repository / PICTURES)
    with serve_repository(repository, broker_url, "samples", ["densenet_onnx", PICTURES]) as served:
        yield served


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
async def test_it_runs_unmodified(
    run: list[str],
    samples: Fleet,
    unique: Callable[[str], str],
    peer_python: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """It finds the picture's colour, and ends without an error."""
    picture, settings = tmp_path / "a.png", settings_of(server_name="triton")
    cv2.imwrite(str(picture), np.full((30, 40, 3), (200, 10, 10), np.uint8))  # blue
    (tmp_path / "list").write_text(f"{picture} 2\n" * 3)
    async with running(samples, settings, unique("gw")) as gateway:
        output = await call(run, gateway, settings.ports, peer_python("triton"), tmp_path)
    assert ("accuracy: 100.00" if "--images_list" in run else "BLUE") in output, output


def find(name: str) -> list[Path]:
    """Return where a script is."""
    return list(Path(os.environ["MQINFER_SAMPLES"]).glob(f"*/**/{name}"))


async def call(run: list[str], gateway: Running, ports: Any, python: Path, folder: Path) -> str:
    """Return what a script prints."""
    (script,) = find(run[0])
    filled = {
        "http": gateway.http.removeprefix("http://"), "grpc": gateway.grpc, "http_port": ports.http_port,
        "grpc_port": ports.grpc_port, "picture": folder / "a.png", "list": folder / "list",
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        python,
        script,
        *[each.format(**filled) for each in run[1:]],
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
    )
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode()[-3000:]
    return output.decode()
