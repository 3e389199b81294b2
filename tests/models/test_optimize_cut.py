"""A model that is cut in two: what crosses, what is refused, and equal answers of the whole and of its parts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mqinfer.broker.address import BrokerAddress
from mqinfer.client import Client
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.process import ProcessSpec, serve
from mqinfer.errors import ConfigError
from mqinfer.lab.optimize.cutting import AUTO, cut
from mqinfer.models.repository import Repository
from tests.commands import run_main
from tests.onnx_files import save_onnx

RNG = np.random.default_rng(3)
FLOAT = TensorProto.FLOAT


def write(folder: Path, nodes: list[Any], outputs: dict[str, list[Any]], weights: dict[str, Any]) -> None:
    """Write a model that takes `x` [n, 8]."""
    ends = {name: (FLOAT, shape) for name, shape in outputs.items()}
    save_onnx(folder / "1" / "model.onnx", nodes, {"x": (FLOAT, ["n", 8])}, ends, weights)
    (folder / "model.toml").write_text("max_batch_size = 4\n[[classes]]\nname = 'car'\ncolour = [1, 2, 3]\n")


@pytest.fixture
def net(repository: Path) -> Path:
    """A repository with `net`: three layers, a branch around the second, an early output, and a graph within one."""
    node = helper.make_node
    inner = [
        helper.make_graph(
            [node(kind, ["deep", "two"], ["inner"])], kind, [], [helper.make_tensor_value_info("inner", FLOAT, None)]
        )
        for kind in ("Mul", "Add")
    ]
    weights = {f"w{n}": RNG.standard_normal((8, 8)).astype(np.float32) for n in (1, 2, 3)}
    write(
        repository / "net",
        [
            node("MatMul", ["x", "w1"], ["one"]),
            node("Relu", ["one"], ["early"]),
            node("MatMul", ["early", "w2"], ["branch"]),
            node("Add", ["branch", "early"], ["deep"]),
            node("If", ["yes"], ["chosen"], then_branch=inner[0], else_branch=inner[1]),
            node("MatMul", ["chosen", "w3"], ["late"]),
        ],
        {"early": ["n", 8], "late": ["n", 8]},
        weights | {"two": np.float32(2), "yes": np.array(True)},
    )
    return repository


@pytest.mark.slow
@pytest.mark.parametrize(
    "at",
    [
        AUTO,
        pytest.param("early", marks=pytest.mark.full),
        "branch,early",
        pytest.param("chosen", marks=pytest.mark.full),
    ],
)
def test_the_parts_answer_as_the_whole(net: Path, at: str, unique: Callable[[str], str]) -> None:
    """Cut anywhere, also at an output or where two tensors cross: equal bits, each part in a worker of its own."""
    made = cut(Repository(net).find("net"), at.split(","))
    assert made.models == ("net-head", "net-tail", "net-parts")
    assert made.difference == 0
    assert at == AUTO or made.tensors == tuple(at.split(","))
    assert made.crossing == 32 * len(made.tensors)
    pipeline = net / "net-parts" / "model.toml"
    pipeline.write_text(pipeline.read_text() + 'parameters = { remote_steps = "net-head, net-tail" }\n')
    broker, x = f"memory://{unique('broker')}", RNG.standard_normal((3, 8)).astype(np.float32)
    with ExitStack() as stack:
        for name in ("net", *made.models):
            options = WorkerOptions(unique("worker"))
            worker = serve(ProcessSpec(net, name, 1, BrokerAddress.parse(broker), options, device="cpu"))
            stack.callback(worker.stop)
        client = stack.enter_context(Client(broker))
        whole, parts = (client.infer(name, {"x": x}) for name in ("net", "net-parts"))
        assert whole.outputs.keys() == parts.outputs.keys() == {"early", "late"}
        for name, array in whole.outputs.items():
            assert np.array_equal(array, parts.outputs[name])
        card = client.card("net-parts")
        assert (card.max_batch_size, card.classes) == (4, client.card("net").classes)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("nowhere", "no node of the model makes a tensor 'nowhere'; auto finds a place"),
        ("x", "no node of the model makes a tensor 'x'"),
        ("branch", "these cross there, too: early"),
        ("late", "nothing lies behind it"),
    ],
)
def test_where_it_can_not_be_cut(net: Path, at: str, words: str) -> None:
    """Each is said with what to do, and nothing is left in the repository."""
    with pytest.raises(ConfigError, match=words):
        cut(Repository(net).find("net"), [at])
    assert [each.name for each in net.iterdir()] == ["net"]


def test_pictures_and_points(repository: Path) -> None:
    """The pipeline takes both pictures, and points, by the contracts of the whole."""
    node, inputs = helper.make_node, {"left": [1, 4, 4, 3], "right": [1, 4, 4, 3], "cloud": [1, 16, 3]}
    save_onnx(
        repository / "pair" / "1" / "model.onnx",
        [
            node("Add", ["left", "right"], ["sum"]),
            node("Reshape", ["sum", "shape"], ["row"]),
            node("Sub", ["row", "cloud"], ["out"]),
        ],
        {name: (FLOAT, shape) for name, shape in inputs.items()},
        {"out": (FLOAT, [1, 16, 3])},
        {"shape": np.array([1, 16, 3])},
    )
    (repository / "pair" / "model.toml").write_text(
        """[[image]]
input = "left"
mean = 3
[[image]]
input = "right"
resize = "letterbox"
[[points]]
input = "cloud"
fields = ["x", "y", "z"]
"""
    )
    cut(Repository(repository).find("pair"), ["sum"])
    whole, parts = (Repository(repository).find(name).config.pictures for name in ("pair", "pair-parts"))
    assert parts == whole
    assert [each.input for each in whole.images] == ["left", "right"]


@pytest.mark.slow
def test_the_command(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what crosses and how large the parts are; a second time it is refused, for the names are taken."""
    assert run_main("models", "optimize", net, "net", "--cut", "deep") == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "cut at deep: 32 bytes a row cross",
        "net-head: 0.0 MB of weights",
        "net-tail: 0.0 MB of weights",
        "net-parts, the ensemble of both, answers the same to the bit",
    ]
    assert run_main("models", "optimize", net, "net", "--cut", "deep") == 2
    assert "net-head: is there already" in " ".join(capsys.readouterr().err.split())
