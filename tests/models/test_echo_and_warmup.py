"""The back end without an engine, and the runs before `ready`."""

import threading
from pathlib import Path

import numpy as np
import pytest

from mqinfer.errors import ModelFailed, ModelNotLoadable
from mqinfer.models.backends.echo import EchoBackend
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.models.warmup import warm_up, zeros
from mqinfer.protocol.card import CardParameters, ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.types import TensorSpec

ECHO = """
delay_ms = 1.5
fail_every = 2
[[input]]
name = "frame"
datatype = "UINT8"
shape = [-1, 4, 4, 3]
[[input]]
name = "label"
datatype = "BYTES"
shape = [-1]
"""
SPECS = (TensorSpec("frame", Datatype.UINT8, (-1, 4, 4, 3)), TensorSpec("label", Datatype.BYTES, (-1,)))


class Recording(EchoBackend):
    """An echo that records its inputs and returns preset outputs."""

    def __init__(self, specs: tuple[TensorSpec, ...], answer: Array | None = None) -> None:
        super().__init__(specs)
        self.seen: list[dict[str, tuple[int, ...]]] = []
        self._answer = answer

    def infer(self, inputs, outputs=()):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, D102 - as above it
        self.seen.append({name: array.shape for name, array in inputs.items()})
        return super().infer(inputs, outputs) if self._answer is None else {"y": self._answer}


def card(specs: tuple[TensorSpec, ...], max_batch_size: int, image: ImageContract | None = None) -> ModelCard:
    """Make the card of an echo."""
    known = CardParameters(max_batch_size=max_batch_size, image=image)
    return ModelCard(name="m", versions=("1",), platform="mqinfer_echo", inputs=specs, outputs=specs, parameters=known)


def test_echo_from_a_file(repository: Path) -> None:
    """A repository with nothing but a text file serves a model."""
    (repository / "echo" / "1").mkdir(parents=True)
    (repository / "echo" / "1" / "model.echo").write_text(ECHO)
    (version,) = Repository(repository).models()
    model = load_model(version)
    assert model.card.inputs == model.card.outputs == SPECS
    assert (model.card.platform, model.card.max_batch_size) == ("mqinfer_echo", 8)
    inputs = zeros(model.card, 2)
    assert inputs["label"].tolist() == [b"", b""]
    assert model.backend.infer(inputs)["frame"] is inputs["frame"]
    with pytest.raises(ModelFailed, match=r"run 2 .* fail_every = 2"):
        model.backend.infer(inputs)
    assert model.backend.infer(inputs, ["label"]).keys() == {"label"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one"),
        ("delay = 3", "did you mean 'delay_ms'"),
        ("[[input]]\nname='x'\ndatatype='FLOAT'\nshape=[1]", "FP32"),
        ("[[input]]\nname='x'", "missing"),
    ],
)
def test_echo_files_that_say_something_else(repository: Path, text: str, message: str) -> None:
    """A wrong file is refused; the error has what is expected."""
    (repository / "echo" / "1").mkdir(parents=True)
    (repository / "echo" / "1" / "model.echo").write_text(text or "# nothing")
    with pytest.raises(ModelNotLoadable, match=message):
        load_model(Repository(repository).models()[0])


def test_closing_ends_a_run_that_waits() -> None:
    """A worker that shuts down need not wait for the delay."""
    backend = EchoBackend(SPECS, delay_s=60)
    failures: list[ModelFailed] = []

    def run() -> None:
        try:
            backend.infer({})
        except ModelFailed as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="mqinfer-test-echo")
    thread.start()
    backend.close()
    thread.join(10)
    assert not thread.is_alive()
    assert "closed" in str(failures[0])
    with pytest.raises(ModelFailed, match="no input 'frame'"):
        EchoBackend(SPECS).infer({})


@pytest.mark.parametrize(("max_batch_size", "batches"), [(0, [1]), (1, [1]), (4, [1, 4])])
def test_warm_up_runs_both_batch_sizes(max_batch_size: int, batches: list[int]) -> None:
    """`count` runs at batch 1 and at the largest; open axes beyond the batch are 1."""
    specs = (TensorSpec("a", Datatype.FP32, (-1, 3, -1)), TensorSpec("b", Datatype.BYTES, (-1,)))
    backend = Recording(specs)
    warm_up(backend, card(specs, max_batch_size), 2)
    assert backend.seen == [{"a": (batch, 3, 1), "b": (batch,)} for batch in batches for _ in range(2)]
    warm_up(backend, card(specs, max_batch_size), 0)
    assert len(backend.seen) == 2 * len(batches)


def test_open_pictures_get_a_size() -> None:
    """A convolution would refuse a picture of one pixel; an unbatched input keeps its shape."""
    specs = (TensorSpec("x", Datatype.UINT8, (1, -1, -1, 3)), TensorSpec("s", Datatype.BOOL, ()))
    backend = Recording(specs)
    warm_up(backend, card(specs, 0, ImageContract("x")), 1)
    assert backend.seen == [{"x": (1, 256, 256, 3), "s": ()}]


def test_a_model_that_fails_is_not_ready() -> None:
    """Better at the start than at the first request."""
    specs = SPECS[:1]
    with pytest.raises(ModelNotLoadable, match=r"model m version 1: warm-up on zeros with batch 1 failed.*count = 0"):
        warm_up(EchoBackend(specs, fail_every=1), card(specs, 8), 1)


@pytest.mark.parametrize("specs", [(TensorSpec("x", Datatype.FP32, (-1, -1)),), SPECS])
def test_open_shapes_and_strings_may_refuse_zeros(specs: tuple[TensorSpec, ...]) -> None:
    """Nobody knows which sizes or words such a model takes: it serves, and what stays unproven is stated."""
    refused = warm_up(EchoBackend(specs, fail_every=1), card(specs, 8), 1)
    assert "no request was tried" in refused.untried
    assert "[[model_warmup]]" in refused.untried
    assert not warm_up(EchoBackend(specs), card(specs, 8), 1).untried


def test_outputs_must_keep_the_batch() -> None:
    """A model whose output does not grow with the batch can't share a run between requests."""
    specs = (TensorSpec("x", Datatype.FP32, (-1, 2)),)
    backend = Recording(specs, np.zeros(3, np.float32))
    with pytest.raises(ModelNotLoadable, match="max_batch_size = 0"):
        warm_up(backend, card(specs, 4), 1)
    warm_up(backend, card(specs, 0), 1)


def test_memory_is_short_for_the_largest_batch() -> None:
    """The reason is that of a model that can't be loaded, and leads to another try."""
    specs = (TensorSpec("x", Datatype.FP32, (-1, 2**20)),)
    with pytest.raises(
        ModelNotLoadable, match=r"no memory for the warm-up with batch \d+: .*Unable to allocate"
    ) as found:
        warm_up(EchoBackend(specs), card(specs, 2**30))
    assert isinstance(found.value.__cause__, MemoryError)
