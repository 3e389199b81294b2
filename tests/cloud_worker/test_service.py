from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mqinfer.cloud_worker.serving.service import InferenceService, Prepared
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.images.decode import to_rgb
from mqinfer.images.picture import RawImage
from mqinfer.lab.zoo.onnx_graph import OnnxGraph
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.envelope import response_pieces
from mqinfer.protocol.errors import (
    BadEncoding,
    BadImage,
    BadTensor,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    MqinferError,
)
from mqinfer.protocol.header import OUTPUT_ENCODING
from mqinfer.protocol.types import EncodedTensor, InferRequest, InferResponse, RequestedOutput

Gated = Callable[..., tuple[LoadedModel, Any]]
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def ask(*tensors: EncodedTensor, model: str = "echo", **rest: Any) -> InferRequest:
    """Make a request."""
    return InferRequest("1", model, tensors, **rest)


def picture(array: Array, encoding: str, name: str = "x") -> EncodedTensor:
    """Make an input that the image contract applies to."""
    return encode_tensor(name, array, "raw", {"image_encoding": encoding})


@pytest.fixture
def service(gated: Gated) -> InferenceService:
    """A model with two inputs, one of them of fixed width."""
    return InferenceService(gated("echo", ("x", "FP32", [-1, 4]), ("n", "INT64", [-1]))[0])


def inputs(rows: int, start: int = 0) -> tuple[EncodedTensor, EncodedTensor]:
    """Make both inputs of that model, with contents that tell where they came from."""
    numbers = np.arange(start, start + rows)
    return encode_tensor("x", np.repeat(numbers[:, None], 4, 1).astype(np.float32)), encode_tensor("n", numbers)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8))
def test_a_batch_is_split_without_mixing_answers(service: InferenceService, rows: list[int]) -> None:
    """Each request gets the rows that it sent, whatever else ran with it."""
    prepared = [service.prepare(ask(*inputs(count, 1000 * index))) for index, count in enumerate(rows)]
    assert len({item.key for item in prepared}) == 1
    for index, done in enumerate(service.run(prepared)):
        assert done.error is None
        np.testing.assert_array_equal(done.outputs["n"], np.arange(1000 * index, 1000 * index + rows[index]))
        np.testing.assert_array_equal(done.outputs["x"][:, 0], done.outputs["n"])


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8))
def test_a_batch_is_filled_up_to_a_size_that_is_prepared(service: InferenceService, rows: list[int]) -> None:
    """As on a GPU; nobody is answered with the rows that fill up, and what has no rows, or more, runs as it is."""
    backend: Any = service.model.backend
    backend.batch_sizes = (1, 4, 8, 16)
    backend.runs.clear()
    service = InferenceService(service.model)
    prepared = [service.prepare(ask(*inputs(count, 1000 * index))) for index, count in enumerate(rows)]
    for index, done in enumerate(service.run(prepared)):
        assert done.error is None
        np.testing.assert_array_equal(done.outputs["n"], np.arange(1000 * index, 1000 * index + rows[index]))
    (ran,) = backend.runs
    assert ran == next((size for size in (0, 1, 4, 8) if size >= sum(rows)), sum(rows))


@pytest.mark.parametrize(
    ("tensors", "rest", "error", "words"),
    [
        (inputs(1)[:1], {}, BadTensor, r"takes the inputs \['n', 'x'\]"),
        ((*inputs(1), encode_tensor("y", X)), {}, BadTensor, "takes the inputs"),
        ((inputs(1)[0], inputs(1)[0]), {}, BadTensor, "takes the inputs"),
        ((encode_tensor("x", X.astype("f8")), inputs(2)[1]), {}, BadTensor, "FP64; expected FP32"),
        ((encode_tensor("x", X[:, 1:]), inputs(2)[1]), {}, BadTensor, r"shape \[2, 3\]; expected"),
        ((encode_tensor("x", X[0]), inputs(2)[1]), {}, BadTensor, r"shape \[4\]; expected"),
        ((inputs(2)[0], inputs(3)[1]), {}, BadTensor, r"differ in their batch axis: \[2, 3\]"),
        (inputs(9), {}, BadTensor, "a batch of 9.*at most 8, the max_batch_size of its card"),
        (inputs(1), {"model": "other"}, ModelNotFound, "not 'other'"),
        (inputs(1), {"model_version": "2"}, ModelNotFound, "version 1 of it, not 2"),
        (inputs(1), {"outputs": (RequestedOutput("z"),)}, BadTensor, r"not \['z'\]"),
        ((picture(X, "rgb8"), inputs(2)[1]), {}, BadTensor, "is not a picture"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    service: InferenceService,
    tensors: tuple[EncodedTensor, ...],
    rest: dict[str, Any],
    error: type[MqinferError],
    words: str,
) -> None:
    """Names, datatypes, shapes, rows, model, version and outputs are checked, each with its own words."""
    with pytest.raises(error, match=words):
        service.prepare(ask(*tensors, **rest))


def test_shape_and_datatype_are_checked_before_anything_is_decoded(service: InferenceService) -> None:
    """A tensor that does not fit is refused by its declaration; its bytes are not looked at."""
    bomb = EncodedTensor("x", inputs(1)[0].datatype, (1_000_000_000, 5), "lz4", b"\x1f" + b"\xff" * 20)
    with pytest.raises(BadTensor, match="has shape"):
        service.prepare(ask(bomb, inputs(1)[1]))


def test_outputs_are_chosen_and_encoded_as_asked(service: InferenceService) -> None:
    """Only what was asked for comes back, each by its own codec, the rest by the request's."""
    request = ask(
        *inputs(2),
        outputs=(RequestedOutput("n", "shuffle-lz4"), RequestedOutput("x")),
        parameters={OUTPUT_ENCODING: "lz4"},
    )
    (done,) = service.run([service.prepare(request)])
    encoded = service.encode(request, done.outputs)
    assert [(tensor.name, tensor.encoding) for tensor in encoded] == [("n", "shuffle-lz4"), ("x", "lz4")]
    np.testing.assert_array_equal(decode_tensor(encoded[0]), [0, 1])
    (only,) = service.run([service.prepare(ask(*inputs(1), outputs=(RequestedOutput("n"),)))])
    assert list(only.outputs) == ["n"]


def test_a_raw_mask_is_sent_from_where_the_model_left_it(gated: Gated) -> None:
    """No copy between back end and link: the message's pieces lie in the model's own output, also of a batch."""
    service = InferenceService(gated("echo", ("mask", "UINT8", [-1, 200, 300]))[0])
    masks = [np.full((1, 200, 300), number, np.uint8) for number in (1, 2)]
    for batch in (masks[:1], masks):
        requests = [ask(encode_tensor("mask", mask)) for mask in batch]
        for request, done in zip(requests, service.run([service.prepare(each) for each in requests]), strict=True):
            tensors = service.encode(request, service.finish(request, done.outputs))
            pieces = response_pieces(InferResponse("1", "echo", outputs=tensors))
            sent = next(np.frombuffer(piece, np.uint8) for piece in pieces if len(piece) == 60_000)
            assert np.shares_memory(sent, done.outputs["mask"])


def test_top_classes_come_in_the_place_of_an_output(service: InferenceService) -> None:
    """The others stay as they are, and the codec carries the text."""
    request = ask(*inputs(2), outputs=(RequestedOutput("n"), RequestedOutput("x", "lz4", classification=2)))
    (done,) = service.run([service.prepare(request)])
    n, x = service.encode(request, service.finish(request, done.outputs))
    assert decode_tensor(n).tolist() == [0, 1]
    assert decode_tensor(x).tolist() == [[b"0.000000:0", b"0.000000:1"], [b"1.000000:0", b"1.000000:1"]]


def test_an_output_that_the_codec_can_not_carry(service: InferenceService) -> None:
    """The codec's own words come back."""
    request = ask(*inputs(1), parameters={OUTPUT_ENCODING: "png"})
    with pytest.raises(BadEncoding, match="png takes"):
        service.encode(request, {"x": X})


def test_requests_that_want_different_outputs_do_not_share_a_batch(service: InferenceService) -> None:
    """The key holds the outputs wanted."""
    all_of_them = service.prepare(ask(*inputs(1)))
    one = service.prepare(ask(*inputs(1), outputs=(RequestedOutput("n"),)))
    assert all_of_them.key != one.key


def test_one_bad_member_does_not_spoil_a_batch(gated: Gated) -> None:
    """When a batch fails, each member runs alone, and only the bad one has an error."""
    model, backend = gated()
    service = InferenceService(model)
    backend.fails = lambda given: ModelFailed("a 7") if 7 in given["x"] else None
    batch = [service.prepare(ask(encode_tensor("x", np.full((1, 4), n, np.float32)))) for n in (5, 7, 6)]
    done = service.run(batch)
    assert [item.error is None for item in done] == [True, False, True]
    assert [item.outputs["x"][0, 0] for item in done if not item.error] == [5, 6]
    assert backend.runs == [3, 1, 1, 1]


def test_a_back_end_that_breaks_its_contract_is_the_models_failure(
    gated: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a back end from elsewhere raises becomes ModelFailed, so that nobody waits for an answer."""
    model, backend = gated()
    service = InferenceService(model)
    backend.fails = lambda _: IndexError("out of range")
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        (done,) = service.run([service.prepare(ask(encode_tensor("x", X)))])
    assert isinstance(done.error, ModelFailed)
    assert "IndexError" in str(done.error)


def test_outputs_without_a_batch_axis_are_an_error_and_not_cut_up(gated: Gated) -> None:
    """A model that sums over its batch can't share runs; alone, its answer is taken as it is."""
    model, backend = gated()
    service = InferenceService(model)
    original = backend.infer

    def summed(given: Mapping[str, Array], outputs: Any = ()) -> dict[str, Array]:
        return {"x": original(given, outputs)["x"].sum(0)}

    backend.infer = summed
    done = service.run([service.prepare(ask(encode_tensor("x", X))) for _ in range(3)])
    assert all(item.error is None and item.outputs["x"].shape == (4,) for item in done)


def test_a_model_without_a_batch_axis(gated: Gated) -> None:
    """It takes its inputs as they are and shares no run."""
    service = InferenceService(gated("echo", ("x", "FP32", [4]), config="max_batch_size = 0")[0])
    first, second = (service.prepare(ask(encode_tensor("x", X[row]))) for row in (0, 1))
    assert service.max_rows == first.rows == second.rows == 1  # so that a batch never holds two
    np.testing.assert_array_equal(service.run([second])[0].outputs["x"], X[1])


PIXELS = hnp.arrays(np.uint8, (6, 8, 3))


def prepared_picture(service: InferenceService, array: Array, encoding: str) -> Array:
    """Give what the model would see."""
    found: Prepared = service.prepare(ask(picture(array, encoding)))
    return found.inputs["x"]


@pytest.fixture
def eye(gated: Gated) -> InferenceService:
    """A model that takes RGB pictures of any size, unscaled."""
    return InferenceService(gated("echo", ("x", "UINT8", [-1, -1, -1, 3]))[0])


@given(PIXELS)
def test_plain_pictures(eye: InferenceService, pixels: Array) -> None:
    """rgb8 is taken as it is, bgr8 turned round, mono8 repeated; the batch axis may be there or not."""
    np.testing.assert_array_equal(prepared_picture(eye, pixels, "rgb8")[0], pixels)
    np.testing.assert_array_equal(prepared_picture(eye, pixels[None], "rgb8")[0], pixels)
    np.testing.assert_array_equal(prepared_picture(eye, pixels, "bgr8")[0], pixels[:, :, ::-1])
    for mono in (pixels[:, :, 0], pixels[None, :, :, 0], pixels[:, :, :1], pixels[None, :, :, :1]):
        np.testing.assert_array_equal(prepared_picture(eye, mono, "mono8")[0], np.repeat(pixels[:, :, :1], 3, 2))


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
@pytest.mark.parametrize("bits", [8, 16])
def test_mosaics_are_demosaiced_by_the_worker(eye: InferenceService, pattern: str, bits: int) -> None:
    """A mosaic becomes what the edge would have made of it, in 8 and in 16 bits."""
    dtype = np.uint8 if bits == 8 else np.uint16
    mosaic = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (6, 8), dtype)
    encoding = f"bayer_{pattern}{bits}"
    expected = to_rgb(RawImage(encoding, 6, 8, mosaic.strides[0], is_bigendian=False, data=mosaic.tobytes()))
    for array in (mosaic, mosaic[None]):
        np.testing.assert_array_equal(prepared_picture(eye, array, encoding)[0], expected)


@given(hnp.arrays(np.uint16, (4, 5)))
def test_sixteen_bits_are_scaled_to_eight(eye: InferenceService, pixels: Array) -> None:
    """mono16 keeps its order of brightness and its extremes."""
    seen = prepared_picture(eye, pixels, "mono16")[0, :, :, 0].astype(float)
    assert np.all(np.abs(seen - pixels.astype(float) / 257) <= 1)


def test_the_contracts_size_colour_and_layout_are_applied(gated: Gated) -> None:
    """A picture of another size is brought to the model's, in its layout, order and range."""
    config = '[image]\ncolour = "bgr"\nlayout = "NCHW"\nscale = 0.5\nmean = [1, 2, 3]\nstd = [2, 2, 2]\n'
    service = InferenceService(gated("echo", ("x", "FP32", [-1, 3, 4, 6]), config=config)[0])
    flat = np.broadcast_to(np.array([10, 20, 30], np.uint8), (8, 12, 3))
    seen = prepared_picture(service, flat, "rgb8")
    assert seen.shape == (1, 3, 4, 6)
    np.testing.assert_allclose(
        seen[0, :, 0, 0].astype(np.float64), [(30 / 2 - 1) / 2, (20 / 2 - 2) / 2, (10 / 2 - 3) / 2]
    )


def test_a_picture_for_a_model_without_a_batch_axis(gated: Gated) -> None:
    """The array has exactly the axes that the model declares."""
    service = InferenceService(gated("echo", ("x", "UINT8", [4, 6, 3]), config="max_batch_size = 0")[0])
    pixels = np.random.default_rng(0).integers(0, 255, (4, 6, 3), np.uint8)
    np.testing.assert_array_equal(prepared_picture(service, pixels, "rgb8"), pixels)


@pytest.mark.parametrize(
    ("array", "encoding", "error"),
    [
        (np.zeros((2, 4, 4, 3), np.uint8), "rgb8", BadTensor),
        (np.zeros((2, 4, 4), np.uint8), "bayer_rggb8", BadTensor),
        (np.zeros((4, 4), np.uint8), "rgb8", BadTensor),
        (np.zeros((4, 4, 3), np.uint16), "rgb8", BadTensor),
        (np.zeros((4, 4, 3), np.float32), "rgb8", BadTensor),
        (np.zeros((4, 4), np.float32), "32FC1", BadImage),
        (np.zeros(4, np.uint8), "mono8", BadTensor),
        (np.zeros(4, np.uint8), "bayer_rggb8", BadTensor),
        (np.zeros((0, 4), np.uint8), "bayer_rggb8", BadTensor),
        (np.zeros((1, 0, 0, 3), np.uint8), "rgb8", BadTensor),
        (np.array([[b"a"]], object), "mono16", BadTensor),
        (np.zeros((4, 4), np.uint8), "mono16", BadImage),
        (np.zeros((4, 4), np.uint8), "no_such_encoding", BadImage),
        (np.zeros((1, 1, 1, 4, 4), np.uint8), "mono8", BadTensor),
    ],
)
def test_what_is_no_picture_is_refused(
    eye: InferenceService, array: Array, encoding: str, error: type[MqinferError]
) -> None:
    """Wrong axes, several pictures in one, wrong datatypes and unknown encodings each give a typed error."""
    with pytest.raises(error):
        eye.prepare(ask(picture(array, encoding)))


@given(
    array=st.one_of(
        hnp.arrays(np.uint8, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)),
        hnp.arrays(np.uint16, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)),
    ),
    encoding=st.sampled_from(["rgb8", "bgr8", "mono8", "mono16", "rgb16", "bayer_rggb8", "bayer_gbrg16", "yuv422", ""]),
)
def test_any_array_under_any_encoding_is_a_picture_or_a_typed_error(
    eye: InferenceService, array: Array, encoding: str
) -> None:
    """Nothing but an error of the tree leaves `prepare`."""
    with suppress(InvalidRequest, BadImage):
        assert prepared_picture(eye, array, encoding).shape[0] == 1


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """An ONNX model that looks numbers up in a table of eight, and fails on any other index."""
    repository = tmp_path_factory.mktemp("lookup")
    path = repository / "lookup" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    graph = OnnxGraph("int64", ("N", 1))
    table = graph.constant(np.arange(8, dtype=np.float32) * 10)
    graph.node("Gather", table, "input", output="output", axis=0)
    graph.add_output("output", "float32", ("N", 1))
    graph.write(path)
    (version,) = Repository(repository).models()
    return load_model(version, device="cpu")


def test_one_bad_row_fails_alone_in_a_real_engine(lookup: LoadedModel) -> None:
    """An index out of range ends in an error for its request; those that shared its batch get their results."""
    runs: list[int] = []
    service = InferenceService(lookup, ran=lambda rows, *_: runs.append(rows), count=lambda _: runs.append(0))
    indices = [3, 99, 0, 7]
    batch = [service.prepare(ask(encode_tensor("input", np.array([[i]])), model="lookup")) for i in indices]
    completed = service.run(batch)
    assert [type(done.error) for done in completed] == [type(None), ModelFailed, type(None), type(None)]
    assert "out of" in str(completed[1].error)
    assert [done.outputs["output"].item() for done in completed if not done.error] == [30.0, 0.0, 70.0]
    assert runs == [0, 1, 1, 1]


def test_a_model_that_fails_on_batches_only_answers_all(gated: Gated) -> None:
    """Where only the batch fails, each member gets its result from a run of its own."""
    model, backend = gated()
    backend.fails = lambda inputs: ModelFailed("two at a time") if len(inputs["x"]) > 2 else None
    service = InferenceService(model)
    batch = [service.prepare(ask(encode_tensor("x", X[:1] + number))) for number in range(3)]
    completed = service.run(batch)
    assert [done.error for done in completed] == [None] * 3
    assert [done.outputs["x"][0, 0] for done in completed] == [0, 1, 2]
    assert backend.runs == [3, 1, 1, 1]
