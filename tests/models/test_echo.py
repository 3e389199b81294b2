"""The back end without an engine."""

import threading
from pathlib import Path

import pytest

from mqinfer.errors import ModelFailed, ModelNotLoadable
from mqinfer.models.backends.echo import EchoBackend
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.models.warmup import zeros
from mqinfer.protocol.datatypes import Datatype
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
