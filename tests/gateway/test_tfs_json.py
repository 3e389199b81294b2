"""TensorFlow Serving's JSON: both forms of requests, replies, binary data, and requests that are wrong."""

from __future__ import annotations

import json
import tracemalloc
from base64 import urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from mqinfer.errors import InvalidRequest, LimitExceeded
from mqinfer.gateway.tfs import json_tensors
from mqinfer.gateway.tfs.examples import examples_from_json, examples_of
from mqinfer.gateway.tfs.json_tensors import one_large, parse, read_predict, to_binary, write_json
from mqinfer.gateway.tfs.json_tensors import write_predictions as write_large_predictions
from mqinfer.gateway.tfs.messages import tfs_class
from mqinfer.protocol.card import SignatureTensor
from mqinfer.protocol.datatypes import Array, Datatype, datatype_of, dtype_of

X = SignatureTensor("x", Datatype.FP32, (-1, 1))
S = SignatureTensor("s", Datatype.BYTES, None)
B = SignatureTensor("b", Datatype.BOOL, (-1,))
I8 = SignatureTensor("i", Datatype.INT8, (-1,))
NUMBERS = [each for each in Datatype if each is not Datatype.BYTES]


@st.composite
def arrays(draw: st.DrawFn, least: int = 0) -> Array:
    """Any array of numbers or strings, of a number of axes that JSON can tell: no size before the last is 0."""
    shape = draw(st_numpy.array_shapes(min_dims=least, max_dims=3, min_side=1, max_side=3))
    if draw(st.booleans()):
        return draw(st_numpy.arrays(np.object_, shape, elements=st.binary(max_size=8)))
    return draw(st_numpy.arrays(dtype_of(draw(st.sampled_from(NUMBERS))), shape))


def spec(name: str, array: Array) -> SignatureTensor:
    """Return the input of a signature that an array is."""
    return SignatureTensor(name, datatype_of(array.dtype), None)


def write_predictions(outputs: dict[str, Array], *, rows: bool) -> bytes:
    """Return the JSON of outputs, none of which is large."""
    written = write_large_predictions(outputs, rows=rows)
    assert isinstance(written, bytes)
    return written


def assert_same(found: Array, expected: Array) -> None:
    """Check values, shape and type; of NaN, which bits it has is not in JSON."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@given(array=arrays(), other=arrays())
def test_columns_come_back(array: Array, other: Array) -> None:
    """What a reply in columns says is read by a request in columns: bare for one tensor, by name for several."""
    for tensors in ({"a_bytes": array}, {"a_bytes": array, "b_bytes": other}):
        text = write_predictions(tensors, rows=False)
        inputs = [spec(name, each) for name, each in tensors.items()]
        found, rows = read_predict({"inputs": parse(text)["outputs"]}, inputs)
        assert not rows
        for name, each in tensors.items():
            assert_same(found[name], each)


@given(array=arrays(1), copies=st.booleans())
def test_rows_come_back(array: Array, copies: bool) -> None:  # noqa: FBT001 - drawn
    """What a reply in rows says is read by a request in rows: values for one tensor, objects for several."""
    tensors = {"a_bytes": array} | ({"b_bytes": array} if copies else {})
    text = write_predictions(tensors, rows=True)
    found, rows = read_predict({"instances": parse(text)["predictions"]}, [spec(name, array) for name in tensors])
    assert rows
    for each in found.values():
        assert_same(each, array)


def test_the_forms_of_the_documentation() -> None:
    """The examples of the API's documentation, in both forms, are the same inputs."""
    specs = [S, SignatureTensor("signal", Datatype.INT32, None), SignatureTensor("sensor", Datatype.FP64, None)]
    row = {"s": "foo", "signal": [1, 2, 3, 4, 5], "sensor": [[1, 2], [3, 4]]}
    rows, _ = read_predict({"instances": [row, row | {"s": "bar"}]}, specs)
    columns = {"s": ["foo", "bar"], "signal": [row["signal"]] * 2, "sensor": [row["sensor"]] * 2}
    for name, array in read_predict({"inputs": columns}, specs)[0].items():
        assert_same(array, rows[name])
    assert rows["s"].tolist() == [b"foo", b"bar"]
    assert rows["sensor"].shape == (2, 2, 2)
    assert read_predict({"instances": ["foo", {"b64": "AP8="}]}, [S])[0]["s"].tolist() == [b"foo", b"\x00\xff"]
    assert read_predict({"inputs": {"b64": "AP8"}}, [S])[0]["s"].item() == b"\x00\xff"


def test_numbers_that_json_lacks() -> None:
    """NaN and infinities come bare and go bare, and floats have no more digits than they need."""
    content = parse(b'{"instances": [NaN, Infinity, -Infinity, 0.2]}')
    array = read_predict(content, [X])[0]["x"]
    assert write_predictions({"y": array}, rows=True) == b'{"predictions":[NaN,Infinity,-Infinity,0.2]}'
    assert write_predictions({"y": array[3:], "z": array[3:] * 2}, rows=True) == b'{"predictions":[{"y":0.2,"z":0.4}]}'
    assert write_predictions({"y": array[3:], "z": array[:1]}, rows=True) == b'{"predictions":[{"y":0.2,"z":NaN}]}'
    half = np.array([0.1, np.nan], np.float16)
    assert write_predictions({"y": half}, rows=False) == b'{"outputs":[0.1,NaN]}'
    assert write_json({"results": [["a", float("nan")]]}) == b'{"results":[["a",NaN]]}'


def test_strings_that_are_not_text() -> None:
    """An output is binary by its name, and otherwise where it is not UTF-8: JSON has no such string."""
    strings = np.array([b"a", b"\xff"], np.object_)
    assert json.loads(write_predictions({"y": strings}, rows=True)) == {"predictions": ["a", {"b64": "/w=="}]}
    assert json.loads(write_predictions({"y_bytes": strings[:1]}, rows=True)) == {"predictions": [{"b64": "YQ=="}]}


@given(data=st.binary())
def test_base64(data: bytes) -> None:
    """Both alphabets are read, with padding or without."""
    text = urlsafe_b64encode(data).decode()
    assert to_binary({"b64": text}) == to_binary({"b64": text.rstrip("=")}) == data


@pytest.mark.parametrize(
    ("body", "inputs", "error"),
    [
        (b"", [X], "JSON Parse error: The document is empty"),
        (b"[]", [X], "JSON Value: [] Is not object"),
        (b"{", [X], "JSON Parse error: "),
        (b'{"inputs": NaN, }', [X], "JSON Parse error: "),
        (b"\xff", [X], "JSON Parse error: "),
        (b"[" * 10_000, [X], "JSON nesting depth exceeds maximum allowed limit (100)"),
        (b"{}", [X], "Missing 'inputs' or 'instances' key"),
        (b'{"inputs": 1, "instances": [1]}', [X], "expecting only one of 'inputs' or 'instances' keys to exist "),
        (b'{"instances": 1}', [X], "Expecting 'instances' to be an list/array"),
        (b'{"instances": []}', [X], "No values in 'instances' array"),
        (b'{"instances": [1]}', [X, S], "instances is a plain list, but expecting list of objects as multiple input"),
        (b'{"inputs": [1]}', [X, S], "inputs is a plain value/list, but expecting an object as multiple input tensors"),
        (b'{"instances": [{"x": 1}, 2]}', [X], "Expecting object but got list at item 1 of input list"),
        (b'{"instances": [1, {"x": 1}]}', [X], "Expecting value/list but got object at item 1 of input list"),
        (b'{"instances": [{"x": 1}]}', [X, S], "Failed to process element: 0 of 'instances' list. JSON object: "),
        (b'{"inputs": {"x": 1}}', [X, S], "Missing named input: s in 'inputs' object."),
        (b'{"instances": [[1], [1, 2]]}', [X], "Failed to process element: 1 of 'instances' list. Error: "),
        (b'{"instances": [[[1, 2]], [[1], [2]]]}', [X], "Expecting shape [1,2] but got: [2,1]"),
        (b'{"instances": [{"x": [1]}, {"x": "a"}]}', [X], "key: x of 'instances' list. Error: INVALID_ARGUMENT: JSON"),
        (b'{"inputs": [[1], [1, 2]]}', [X], "Encountered list at unexpected size: 2 at level: 1 expected size: 1"),
        (b'{"inputs": [[1], 2]}', [X], "JSON Value: 2 found at incorrect level: 2 in the JSON DOM. Expected at level"),
        (b'{"inputs": [1, [2]]}', [X], "JSON Value: [2]: encountered list at unexpected level"),
        (b'{"inputs": ["a"]}', [X], 'JSON Value: "a" Type: String is not of expected type: float'),
        (b'{"inputs": [true]}', [X], "JSON Value: true Type: True is not of expected type: float"),
        (b'{"inputs": [null]}', [X], "JSON Value: null Type: Null is not of expected type: float"),
        (b'{"inputs": [{"b64": "AA=="}]}', [X], "Type: Object is not of expected type: float"),
        (b'{"inputs": [1]}', [B], "JSON Value: 1 Type: Number is not of expected type: bool"),
        (b'{"inputs": [1.5]}', [I8], "JSON Value: 1.5 Type: Number is not of expected type: int8"),
        (b'{"inputs": [1, 128]}', [I8], "JSON Value: 128 Type: Number is not of expected type: int8"),
        (b'{"inputs": [1]}', [S], "JSON Value: 1 Type: Number is not of expected type: string"),
        (b'{"inputs": {"b64": "?"}}', [S], "Unable to base64 decode"),
        (b'{"inputs": [{"b64": 1}]}', [S], "not formatted correctly for base64 data"),
        (b'{"inputs": "\\ud800"}', [S], ""),
        (b'{"inputs": ' + b"[" * 20 + b"]" * 20 + b"}", [X], "20 axes; at most 16 are accepted"),
    ],
)  # fmt: skip
def test_wrong_requests(body: bytes, inputs: list[SignatureTensor], error: str) -> None:
    """Each is refused in TensorFlow Serving's words, which name the place."""
    with pytest.raises(InvalidRequest) as raised:
        read_predict(parse(body), inputs)
    assert error in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_too_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of a body are counted before objects are made of them; the values in a message are cut."""
    monkeypatch.setattr(json_tensors, "_MOST_ITEMS", 1000)
    with pytest.raises(LimitExceeded, match="more than 1000 values"):
        parse(b'{"inputs": [' + b"[]," * 1000 + b"[]]}")
    with pytest.raises(LimitExceeded, match="more than 1000 values"):
        parse(b'{"inputs": [' + b"{}," * 250 + b"{}]}")  # an object takes as much as four
    monkeypatch.undo()
    with pytest.raises(InvalidRequest) as raised:
        read_predict(parse(b'{"inputs": ["' + b"a" * 100_000 + b'"]}'), [X])
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("example", [b"{}", b'{"x":[1]}', b'{"x":1,"y":"","z":"z"}'])
def test_examples_are_counted_first(example: bytes) -> None:
    """Examples and features are counted in the text, before anything is made of them; their text is not."""
    body = b'{"examples":[' + (example + b",") * 200_000 + example + b"]}"
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match="more than 200000 examples and features; send less in one request"):
            parse(body, 200_000)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()
    text = {"examples": [{"x": "{:" * 1000, "y": '\\\\"{:'}]}
    assert parse(json.dumps(text).encode(), 5) == text


def test_large_bodies_are_read_one_at_a_time() -> None:
    """What is parsed takes many times the memory of a body, so those above 1 MiB wait for each other; others don't."""
    with one_large(b" " * (2 << 20)), ThreadPoolExecutor(1) as pool:
        small, large = (pool.submit(json_tensors.one_large, b" " * size).result() for size in (1 << 20, (1 << 20) + 1))
        assert isinstance(small, nullcontext)
        assert large.acquire(blocking=False) is False  # type: ignore[attr-defined]


def test_rows_of_outputs_without_rows() -> None:
    """Outputs without a first axis, or of different lengths, have no rows."""
    with pytest.raises(InvalidRequest, match="Tensor name: y has no shape information"):
        write_predictions({"y": np.array(1.0)}, rows=True)
    with pytest.raises(InvalidRequest, match="Tensor name: z has inconsistent batch size: 2 expecting: 1"):
        write_predictions({"y": np.zeros(1), "z": np.zeros(2)}, rows=True)


def features_of(example: bytes) -> dict[str, Any]:
    """Return the features of a serialised example."""
    found = tfs_class("Example").FromString(example).features.feature
    return {name: list(getattr(each, each.WhichOneof("kind")).value) for name, each in found.items()}


def test_examples() -> None:
    """Features are numbers, strings or binary data, alone or in lists; a context is part of each example."""
    one = b'{"x": 2.0, "n": [1, true], "s": ["a", {"b64": "AP8="}]}'
    content = parse(b'{"context": {"c": 7}, "examples": [%b, {"x": [0.5, 1.5]}]}' % one)
    first, second = map(features_of, examples_from_json(content))
    assert first == {"c": [7], "x": [2.0], "n": [1, 1], "s": [b"a", b"\x00\xff"]}
    assert second == {"c": [7], "x": [0.5, 1.5]}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{}", "When method is classify, key 'examples' is expected and was not found"),
        (b'{"examples": {}}', "Expecting 'examples' value to be an list/array"),
        (b'{"examples": []}', "'examples' value is an empty array"),
        (b'{"examples": [1]}', "Example must be JSON object but got JSON 1"),
        (b'{"examples": [{"x": null}]}', "Feature: x has element with unexpected JSON type: Null"),
        (b'{"examples": [{"x": [[1]]}]}', "Feature: x has element with unexpected JSON type: Array"),
        (b'{"examples": [{"x": {"a": 1}}]}', "Feature: x has element with unexpected JSON type: Object"),
        (b'{"examples": [{"x": [1, 1.5]}]}', "Unexpected element type in feature: x expecting type: int64"),
        (b'{"examples": [{"x": 18446744073709551615}]}', "Only int64_t is supported."),
        (b'{"examples": [{"x": {"b64": "?"}}]}', "Unable to base64 decode"),
    ],
)
def test_wrong_examples(body: bytes, error: str) -> None:
    """Each is refused in TensorFlow Serving's words."""
    with pytest.raises(InvalidRequest) as raised:
        examples_from_json(parse(body))
    assert error in str(raised.value)


def test_what_a_context_would_become() -> None:
    """It stands before each example: few bytes that stand for gigabytes are refused, and too many examples."""
    body = {"context": {"c": [1] * 4096}, "examples": [{}] * 20_000}
    with pytest.raises(LimitExceeded, match=r"a context of 4\d{3} bytes before each of 20000 examples takes 8"):
        examples_from_json(body)
    context = tfs_class("Example").FromString(examples_from_json({"examples": [body["context"]]})[0])
    message = tfs_class("Input")()
    message.example_list_with_context.context = context.SerializeToString()
    message.example_list_with_context.examples.extend([b""] * 20_000)
    with pytest.raises(LimitExceeded, match="before each of 20000 examples"):
        examples_of(message)
    message.example_list.examples.extend([b""] * ((1 << 19) + 1))
    with pytest.raises(LimitExceeded, match="524289 examples; at most 524288"):
        examples_of(message)


@given(
    content=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.sampled_from(["x", "s", "b64"]) | st.text(), each),
        max_leaves=12,
    ),
    key=st.sampled_from(["instances", "inputs", "examples"]),
    inputs=st.sampled_from([[X], [S], [I8], [X, S]]),
)
def test_any_json_is_read_or_refused(content: Any, key: str, inputs: list[SignatureTensor]) -> None:
    """Whatever stands under a key, it is inputs or an error."""
    with suppress(InvalidRequest):
        found = parse(json.dumps({key: content}).encode())
        if key == "examples":
            examples_from_json(found)
        else:
            assert read_predict(found, inputs)[0].keys() == {tensor.name for tensor in inputs}
