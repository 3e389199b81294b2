"""Bodies of inference requests, read without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.gateway.rest.request import RestRequest, read_request
from mqinfer.protocol.datatypes import Datatype, dtype_of, from_raw
from mqinfer.protocol.errors import BadEnvelope, BadTensor, InvalidRequest, LimitExceeded
from tests.gateway.rest_front import json_input


def read(text: bytes | dict[str, Any]) -> RestRequest:
    """Read a body that is all JSON."""
    body = text if isinstance(text, bytes) else json.dumps(text).encode()
    return read_request(body, len(body), "m")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
FIELDS = {
    "name": JSON | st.just("x"),
    "datatype": JSON | st.sampled_from([*Datatype, "BF16"]),
    "shape": JSON | st.lists(st.integers(0, 3), max_size=3),
    "data": JSON,
    "parameters": JSON | st.fixed_dictionaries({"binary_data_size": JSON | st.integers(0, 20)}),
}
TENSOR = JSON | st.fixed_dictionaries({}, optional=FIELDS)
REQUEST = st.fixed_dictionaries(
    {"inputs": JSON | st.lists(TENSOR, max_size=3)},
    optional={"id": JSON, "outputs": JSON | st.lists(TENSOR, max_size=3), "parameters": JSON},
)


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_more_tensors_than_any_request_has(
    takes_at_most: Callable[[int], AbstractContextManager[None]], field: str
) -> None:
    """Their objects are counted before they are made, whatever is in strings; a million took 400 MB."""
    whole = {"inputs": [json_input("x", "BYTES", [1], ["{" * 2000])], "outputs": [{"name": "y"}]}
    assert [output.name for output in read(whole).outputs] == ["y"]
    body = json.dumps({**whole, field: [*whole["outputs"] * 100_000]}).encode()
    with takes_at_most(3 * len(body)), pytest.raises(LimitExceeded, match="objects in JSON; a request has at most 258"):
        read(body)


def test_parameters_that_are_not_utf8() -> None:
    """They are kept as they came until their turn, and refused then as the rest of the body is."""
    with pytest.raises(BadEnvelope, match=r"^failed to parse the request JSON buffer: 'utf-8' codec"):
        read(b'{"inputs":[],"parameters":{"a\xff":1}}')


@given(body=REQUEST | JSON, tail=st.binary(max_size=40), cut=st.integers(0, 20))
def test_any_json(body: Any, tail: bytes, cut: int) -> None:
    """Whatever JSON comes, and however it is cut, it is read or refused; what is read has the declared sizes."""
    text = json.dumps(body).encode()
    length = max(0, len(text) - cut)
    try:
        request = read_request(text[:length] + tail, length, "m")
    except InvalidRequest:
        return
    for tensor in request.inputs:
        if tensor.datatype is not Datatype.BYTES and "binary_data_size" not in str(body):
            from_raw(tensor.name, tensor.datatype, tensor.shape, tensor.data)


@given(st.binary(max_size=300))
def test_any_bytes(body: bytes) -> None:
    """Bytes that are no request are refused."""
    with pytest.raises(InvalidRequest):
        read(body)


@given(st.data())
def test_arrays(data: st.DataObject) -> None:
    """Arrays come back as they were, flat or nested, with blanks or without."""
    datatype = data.draw(st.sampled_from([each for each in Datatype if each not in {"FP16", "BYTES"}]))
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = dtype_of(datatype)
    size = int(np.prod(shape))
    array = np.frombuffer(data.draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize)), dtype)
    array = (array.view(np.uint8) % 2).astype(np.bool_) if datatype == "BOOL" else array
    nested = array.reshape(shape)
    values = data.draw(st.sampled_from([array.tolist(), nested.tolist() if shape else [nested.item()]]))
    indent = data.draw(st.sampled_from([None, 1]))
    body = json.dumps({"inputs": [json_input("x", datatype, shape, values)]}, indent=indent)
    tensor = read(body.encode()).inputs[0]
    assert tensor.shape == tuple(shape)
    np.testing.assert_array_equal(from_raw("x", datatype, tensor.shape, tensor.data), nested)


def test_nested_arrays() -> None:
    """Nested data are read in the order of their text; other numbers of elements, and empty ones, are refused."""
    truth = b"".join(b"\1\0\0\0%d" % number for number in (1, 2, 3, 4))
    nested: list[Any] = [[1, 2, 3, 4], [[1, 2], [3, 4]], [[[[1, 2, 3, 4]]]]]
    for data in nested:
        tensor = read({"inputs": [json_input("x", "INT32", [2, 2], data)]}).inputs[0]
        assert np.frombuffer(tensor.data, "<i4").tolist() == [1, 2, 3, 4]
        strings = json.loads(re.sub(r"\d", r'"\g<0>"', json.dumps(data)))
        assert bytes(read({"inputs": [json_input("x", "BYTES", [2, 2], strings)]}).inputs[0].data) == truth
    wrong: list[Any] = [[1, 2, 3], [1, 2, 3, 4, 5], [[1, 2], [3, []]], [[], [1, 2, 3]], [], [{"a": 1, "b": 2}, 3, 4]]
    for data in wrong:
        for datatype in ("INT32", "BYTES")[: 1 + bool(data)]:  # strings that are too few are refused later
            with pytest.raises(InvalidRequest):
                read({"inputs": [json_input("x", datatype, [2, 2], data)]})
    deep: Any = "x"
    for _ in range(50):
        deep = [deep]
    assert read({"inputs": [json_input("x", "BYTES", [1, 1], deep)]}).inputs[0].data == b"\1\0\0\0x"


def test_pieces() -> None:
    """An array that is converted in several pieces is whole, and a fault in the last one is found."""
    count = 400_000
    body = {"inputs": [json_input("x", "INT32", [count], list(range(count)))]}
    tensor = read(body).inputs[0]
    np.testing.assert_array_equal(np.frombuffer(tensor.data, "<i4"), np.arange(count))
    body["inputs"][0]["data"][-1] = 1.5
    with pytest.raises(BadTensor, match="INT32"):
        read(body)


def test_memory(takes_at_most: Callable[[int], AbstractContextManager[None]]) -> None:
    """A large array of JSON takes a few times its text, not ten times; arrays that contradict the shape take less."""
    numbers = [[0.123456789 + number] * 1000 for number in range(200)]
    text = json.dumps({"inputs": [json_input("x", "FP32", [200, 1000], numbers)]}).encode()
    with takes_at_most(5 * len(text) + (16 << 20)):
        read(text)
    hostile = b'{"inputs":[{"name":"x","datatype":"%b","shape":[1],"data":[%b]}]}'
    for datatype in (b"FP32", b"INT8"):
        for item in (b"[],", b"1,", b'"",'):
            body = hostile % (datatype, (item * (1 << 20)).rstrip(b","))
            with takes_at_most(4 * len(body)), pytest.raises(InvalidRequest):
                read(body)
    for start, end in (
        (b'{"inputs":[],"parameters":{"x":[', b"1]}}"),
        (b'{"inputs":[],"outputs":[{"name":[', b"1]}]}"),
    ):
        body = start + b"[]," * (1 << 20) + end
        with takes_at_most(4 * len(body)), pytest.raises(InvalidRequest):
            read(body)
    body = hostile % (b"BYTES", b'"",' * (5 << 20) + b'""')
    with takes_at_most(4 * len(body)), pytest.raises(LimitExceeded):
        read(body)
