"""The runs before `ready`: zeros, and Triton's `model_warmup` with samples of zeros, random numbers and files."""

from pathlib import Path

import numpy as np
import pytest

from mqinfer.errors import ConfigError, ModelNotLoadable
from mqinfer.models.backends.echo import EchoBackend
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.models.repository.config import WarmUpInput, WarmUpSample
from mqinfer.models.warmup import sample_inputs, warm_up
from mqinfer.protocol.card import CardParameters, ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.types import TensorSpec

NUMBERS = [datatype for datatype in Datatype if datatype is not Datatype.BYTES]
FRAME, LABEL = TensorSpec("frame", Datatype.UINT8, (-1, 4, 4, 3)), TensorSpec("label", Datatype.BYTES, (-1,))
SPECS = (TensorSpec("x", Datatype.FP32, (-1, 2)), TensorSpec("s", Datatype.BYTES, (-1, -1)))
X, S = WarmUpInput(Datatype.FP32, (2,)), WarmUpInput(Datatype.BYTES, (1,))


class Recording(EchoBackend):
    """An echo that records its inputs and may return a preset output."""

    def __init__(self, specs: tuple[TensorSpec, ...], answer: Array | None = None) -> None:
        super().__init__(specs)
        self.seen: list[dict[str, Array]] = []
        self.batch_sizes: tuple[int, ...] = ()
        self._answer = answer

    @property
    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """The shapes of the inputs."""
        return [{name: array.shape for name, array in each.items()} for each in self.seen]

    def infer(self, inputs, outputs=()):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, D102 - as above it
        self.seen.append(dict(inputs))
        return super().infer(inputs, outputs) if self._answer is None else {"y": self._answer}


def card(*specs: TensorSpec, max_batch_size: int = 4, image: ImageContract | None = None) -> ModelCard:
    """Make the card of an echo."""
    known = CardParameters(max_batch_size=max_batch_size, image=image)
    return ModelCard(name="m", versions=("1",), platform="mqinfer_echo", inputs=specs, outputs=specs, parameters=known)


@pytest.mark.parametrize(("max_batch_size", "batches"), [(0, [1]), (1, [1]), (4, [1, 4])])
def test_warm_up_runs_both_batch_sizes(max_batch_size: int, batches: list[int]) -> None:
    """`count` runs at batch 1 and at the largest; open axes beyond the batch are 1."""
    specs = (TensorSpec("a", Datatype.FP32, (-1, 3, -1)), TensorSpec("b", Datatype.BYTES, (-1,)))
    backend = Recording(specs)
    warm_up(backend, card(*specs, max_batch_size=max_batch_size), 2)
    assert backend.shapes == [{"a": (batch, 3, 1), "b": (batch,)} for batch in batches for _ in range(2)]
    warm_up(backend, card(*specs, max_batch_size=max_batch_size), 0)
    assert len(backend.seen) == 2 * len(batches)


def test_prepared_sizes_are_run_three_times() -> None:
    """Those that fit; with `count = 0` none."""
    specs = (TensorSpec("a", Datatype.FP32, (-1, 3)),)
    backend = Recording(specs)
    backend.batch_sizes = (1, 4, 8)
    warm_up(backend, card(*specs, max_batch_size=6))
    assert backend.shapes == [{"a": (batch, 3)} for batch in (1, 4, 6) for _ in range(3)]
    warm_up(backend, card(*specs, max_batch_size=6), 0)
    assert len(backend.seen) == 9


def test_open_pictures_get_a_size() -> None:
    """A convolution would refuse a picture of one pixel; an unbatched input keeps its shape."""
    specs = (TensorSpec("x", Datatype.UINT8, (1, -1, -1, 3)), TensorSpec("s", Datatype.BOOL, ()))
    backend = Recording(specs)
    warm_up(backend, card(*specs, max_batch_size=0, image=ImageContract("x")), 1)
    assert backend.shapes == [{"x": (1, 256, 256, 3), "s": ()}]


def test_a_model_that_fails_is_not_ready() -> None:
    """Better at the start than at the first request."""
    specs = (FRAME,)
    with pytest.raises(ModelNotLoadable, match=r"model m version 1: warm-up on zeros with batch 1 failed.*count = 0"):
        warm_up(EchoBackend(specs, fail_every=1), card(*specs, max_batch_size=8), 1)


@pytest.mark.parametrize("specs", [(TensorSpec("x", Datatype.FP32, (-1, -1)),), (FRAME, LABEL)])
def test_open_shapes_and_strings_may_refuse_zeros(specs: tuple[TensorSpec, ...]) -> None:
    """Nobody knows which sizes or words such a model takes: it serves, and what stays unproven is stated."""
    refused = warm_up(EchoBackend(specs, fail_every=1), card(*specs, max_batch_size=8), 1)
    assert "no request was tried" in refused.untried
    assert "[[model_warmup]]" in refused.untried
    assert not warm_up(EchoBackend(specs), card(*specs, max_batch_size=8), 1).untried


def test_outputs_must_keep_the_batch() -> None:
    """A model whose output does not grow with the batch can't share a run between requests."""
    specs = (TensorSpec("x", Datatype.FP32, (-1, 2)),)
    backend = Recording(specs, np.zeros(3, np.float32))
    with pytest.raises(ModelNotLoadable, match="max_batch_size = 0"):
        warm_up(backend, card(*specs, max_batch_size=4), 1)
    warm_up(backend, card(*specs, max_batch_size=0), 1)


def test_memory_is_short_for_the_largest_batch() -> None:
    """The reason is that of a model that can't be loaded, and leads to another try."""
    specs = (TensorSpec("x", Datatype.FP32, (-1, 2**20)),)
    with pytest.raises(
        ModelNotLoadable, match=r"no memory for the warm-up with batch \d+: .*Unable to allocate"
    ) as found:
        warm_up(EchoBackend(specs), card(*specs, max_batch_size=2**30))
    assert isinstance(found.value.__cause__, MemoryError)
    with pytest.raises(ModelNotLoadable, match="no memory for the warm-up with batch 4611686018427387904: ") as never:
        warm_up(EchoBackend(specs), card(*specs, max_batch_size=2**62))
    assert not isinstance(never.value.__cause__, MemoryError), "no other try"


def test_one_row_is_repeated_for_the_batch(tmp_path: Path) -> None:
    """A file's bytes are the elements in row-major order; strings have their lengths before them."""
    (tmp_path / "x").write_bytes(np.array([1.5, -2.5, 99], "<f4").tobytes())
    (tmp_path / "s").write_bytes(b"\3\0\0\0car")
    inputs = {
        "x": WarmUpInput(Datatype.FP32, (2,), input_data_file=tmp_path / "x"),
        "s": WarmUpInput(Datatype.BYTES, (1,), input_data_file=tmp_path / "s"),
    }
    made = sample_inputs(card(*SPECS), WarmUpSample(inputs, batch_size=3))
    assert made["x"].tolist() == [[1.5, -2.5]] * 3
    assert made["x"].dtype == np.float32
    assert made["s"].tolist() == [[b"car"]] * 3


def test_dims_may_hold_the_batch_axis() -> None:
    """As in a Triton configuration without `max_batch_size`, whose batch axis is discovered here."""
    specs = (TensorSpec("x", Datatype.FP32, (-1, 2)),)
    backend = Recording(specs)
    warm_up(backend, card(*specs), 0, [WarmUpSample({"x": WarmUpInput(Datatype.FP32, (3, 2))})])
    assert backend.shapes == [{"x": (3, 2)}]


@pytest.mark.parametrize("datatype", NUMBERS)
def test_random_numbers_of_every_datatype(datatype: Datatype) -> None:
    """Floats are from 0 to 1 and whole numbers from all over their range; each start has the same."""
    given = WarmUpInput(datatype, (100, 7), random_data=True)
    sample = WarmUpSample({"x": given})
    model = card(TensorSpec("x", datatype, (100, 7)), max_batch_size=0)
    one, other = (sample_inputs(model, sample)["x"] for _ in range(2))
    assert (one.dtype, one.shape) == (dtype_of(datatype), (100, 7))
    assert np.array_equal(one, other)
    assert len(np.unique(one)) > (1 if datatype is Datatype.BOOL else 100)
    if one.dtype.kind == "f":
        assert one.min() >= 0
        assert one.max() <= 1


def test_strings_are_never_random() -> None:
    """Triton, too, warms up with empty ones then."""
    inputs = {"x": X, "s": WarmUpInput(Datatype.BYTES, (2,), random_data=True)}
    assert sample_inputs(card(*SPECS), WarmUpSample(inputs))["s"].tolist() == [[b"", b""]]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (WarmUpSample({"x": X}, name="a"), r"model_warmup 'a': has the inputs \['x'\], the model has \['s', 'x'\]"),
        (WarmUpSample({"x": X, "s": S}, batch_size=5), "batch_size = 5: expected at most 4"),
        (WarmUpSample({"x": WarmUpInput(Datatype.FP64, (2,)), "s": S}), "data_type FP64, the model has FP32"),
        (WarmUpSample({"x": WarmUpInput(Datatype.FP32, (1, 1, 2)), "s": S}), "leave the batch axis out"),
        (WarmUpSample({"x": WarmUpInput(Datatype.FP32, (3,)), "s": S}), r"the model has \[-1, 2\]"),
    ],
)
def test_samples_that_do_not_fit(sample: WarmUpSample, message: str) -> None:
    """The error comes before the model runs."""
    with pytest.raises(ConfigError, match=message):
        sample_inputs(card(*SPECS), sample)


@pytest.mark.parametrize("content", [b"", b"\0" * 7])
def test_files_that_are_too_short(tmp_path: Path, content: bytes) -> None:
    """A file must hold at least one row."""
    (tmp_path / "x").write_bytes(content)
    sample = WarmUpSample({"x": WarmUpInput(Datatype.FP32, (2,), input_data_file=tmp_path / "x"), "s": S})
    with pytest.raises(ModelNotLoadable, match="expected 2 elements of FP32"):
        sample_inputs(card(*SPECS), sample)


@pytest.mark.parametrize(("count", "runs"), [(0, 1), (1, 1), (3, 3)])
def test_samples_run_so_often(count: int, runs: int) -> None:
    """Triton's count of 0 means once; samples come in their order, after the zeros."""
    backend = Recording(SPECS)
    one = WarmUpSample({"x": X, "s": S}, batch_size=2, count=count)
    two = WarmUpSample({"x": X, "s": S}, batch_size=4)
    warm_up(backend, card(*SPECS), 0, [one, two])
    assert [len(seen["x"]) for seen in backend.seen] == [2] * runs + [4]


def test_a_sample_that_fails_keeps_the_model_from_serving() -> None:
    """A model with strings or open shapes may refuse zeros, but no configured sample."""
    specs = (TensorSpec("s", Datatype.BYTES, (-1, 1)),)
    backend = EchoBackend(specs, fail_every=1)
    warm_up(backend, card(*specs), 1)
    with pytest.raises(ModelNotLoadable, match="warm-up sample 'real' failed"):
        warm_up(backend, card(*specs), 0, [WarmUpSample({"s": S}, name="real")])


def test_a_repository_with_warm_up_data(tmp_path: Path) -> None:
    """The keys of Triton, in `model.toml`, with a file in the folder `warmup` of the model."""
    folder = tmp_path / "echo"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.echo").write_text('[[input]]\nname = "x"\ndatatype = "UINT8"\nshape = [-1, 2]\n')
    (folder / "warmup").mkdir()
    (folder / "warmup" / "pixels").write_bytes(b"\7\x09")
    (folder / "model.toml").write_text(
        """
        [[model_warmup]]
        name = "pixels"
        batch_size = 2
        count = 2
        inputs.x = { data_type = "TYPE_UINT8", dims = [2], input_data_file = "pixels" }
        [[model_warmup]]
        name = "noise"
        batch_size = 1
        inputs.x = { data_type = "TYPE_UINT8", dims = [2], random_data = true }
        """
    )
    (version,) = Repository(tmp_path).models()
    model = load_model(version)
    requested = model.config.model_warmup
    recording = Recording(model.card.inputs)
    warm_up(recording, model.card, requested.count, requested.samples)
    assert [seen["x"].tolist() for seen in recording.seen[:2]] == [[[7, 9], [7, 9]]] * 2
    assert recording.shapes[2:] == [{"x": (1, 2)}]
