from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mqinfer.protocol.card import (
    CardParameters,
    ClassInfo,
    ColourOrder,
    ImageContract,
    Layout,
    ModelCard,
    NotFinite,
    PointsContract,
    Resize,
    card_from_json,
    card_to_json,
    read_card,
)
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import BadEnvelope, BadTensor, BadTopic, LimitExceeded, MqinferError
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import TensorSpec

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
floats = st.floats(allow_nan=False, allow_infinity=False)
channels = st.lists(floats, min_size=1, max_size=3).map(tuple)
sizes = st.none() | st.integers(1, 8192)
levels = st.integers(0, 255)
specs = st.builds(TensorSpec, texts, st.sampled_from(Datatype), st.lists(st.integers(-1, 9), max_size=4).map(tuple))
images = st.builds(
    ImageContract,
    texts,
    sizes,
    sizes,
    st.sampled_from(ColourOrder),
    st.sampled_from(Layout),
    floats,
    channels,
    channels,
)
letterboxes = st.builds(replace, images, resize=st.just(Resize.LETTERBOX), fill=st.integers(0, 255))
crops = st.builds(replace, images, resize=st.just(Resize.CROP))
points = st.builds(
    PointsContract,
    texts,
    st.lists(texts, min_size=1, max_size=3).map(tuple),
    st.none() | st.integers(1, 10_000),
    floats,
    texts,
    st.sampled_from(NotFinite),
    st.booleans(),
)
cards = st.builds(
    ModelCard,
    name=texts,
    versions=st.lists(texts, max_size=3).map(tuple),
    platform=texts,
    inputs=st.lists(specs, max_size=3).map(tuple),
    outputs=st.lists(specs, max_size=3).map(tuple),
    parameters=st.builds(
        CardParameters,
        version=texts,
        max_batch_size=st.integers(0, 64),
        encodings=st.lists(texts, min_size=1, max_size=3).map(tuple),
        image=st.none() | images | letterboxes | crops,
        images=st.lists(images | letterboxes, max_size=2).map(tuple),
        classes=st.lists(st.builds(ClassInfo, texts, st.tuples(levels, levels, levels)), max_size=3).map(tuple),
        model_hash=texts,
        precision=texts,
        backend=texts,
        device=texts,
        points=st.lists(points, max_size=2).map(tuple),
    ),
)


@given(cards)
def test_round_trip(card: ModelCard) -> None:
    """A card loses nothing."""
    assert card_from_json(card_to_json(card)) == card


def test_metadata_is_the_open_inference_protocols() -> None:
    """The top level holds the protocol's names alone, so that its readers understand a card."""
    card = ModelCard(
        name="m",
        versions=("1", "2"),
        platform="onnx_onnxv1",
        inputs=(TensorSpec("x", Datatype.FP32, (-1, 3)),),
    )
    fields = json.loads(card_to_json(card))
    assert list(fields) == ["name", "versions", "platform", "inputs", "outputs", "parameters"]
    assert fields["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]


def test_a_foreign_servers_metadata_is_a_card() -> None:
    """Bare metadata of the protocol will do: the rest has defaults, and the version is the last."""
    card = card_from_json(b'{"name": "m", "versions": ["1", "2"], "platform": "p", "inputs": [], "outputs": []}')
    assert (card.version, card.parameters.encodings, card.image) == ("2", ("raw",), None)


BASE: dict[str, Any] = {"name": "m", "versions": ["1"], "platform": "p", "inputs": [], "outputs": []}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "name"),
        ({"name": 5}, "name"),
        ({"platform": []}, "platform"),
        ({"versions": [1]}, "versions"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-2]}]}, "shape"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": ["2"]}]}, "shape"),
        ({"inputs": ["x"]}, "inputs"),
        ({"parameters": {"max_batch_size": -1}}, "max_batch_size"),
        ({"parameters": {"image": {}}}, "input"),
        ({"parameters": {"image": {"input": "x", "width": 0}}}, "width"),
        ({"parameters": {"image": {"input": "x", "colour": "cmyk"}}}, "rgb, bgr, mono"),
        ({"parameters": {"image": {"input": "x", "mean": ["a"]}}}, "mean"),
        ({"parameters": {"image": {"input": "x", "resize": "a later way"}}}, "stretch, letterbox, crop"),
        ({"parameters": {"image": {"input": "x", "scale": "1"}}}, "scale"),
        ({"parameters": {"image": {"input": "x", "scale": float("nan")}}}, "scale"),
        ({"parameters": {"image": {"input": "x", "std": [10**400]}}}, "std"),
        ({"parameters": {"classes": [{"name": "road", "colour": [1, 2]}]}}, "colour"),
        ({"parameters": {"classes": [{"name": "road", "colour": [1, 2, 256]}]}}, "colour"),
        ({"parameters": {"classes": [{"colour": [1, 2, 3]}]}}, "name"),
    ],
)
def test_nonsense_is_refused_by_the_fields_name(changes: dict[str, Any], message: str) -> None:
    """What is missing or of the wrong type is named."""
    with pytest.raises(BadEnvelope, match=message):
        card_from_json(json.dumps(BASE | changes).encode())


def test_unknown_datatypes_are_refused() -> None:
    """A card that names a datatype of nobody is refused."""
    with pytest.raises(BadTensor, match="BF16"):
        card_from_json(json.dumps(BASE | {"inputs": [{"name": "x", "datatype": "BF16", "shape": []}]}).encode())


def test_a_huge_card_is_refused_unread() -> None:
    """A retained message of megabytes is no card."""
    with pytest.raises(LimitExceeded):
        card_from_json(b" " * (2 << 20))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("size", [{"width": 1 << 30}, {"width": 10_000, "height": 10_000}])
def test_a_card_that_wants_gigantic_pictures_is_refused(size: dict[str, int], several: bool) -> None:  # noqa: FBT001
    """A sender would make them."""
    image = {"input": "x", **size}
    parameters = {"images": [{"input": "y"}, image]} if several else {"image": image}
    with pytest.raises(LimitExceeded, match="pixels"):
        card_from_json(json.dumps(BASE | {"parameters": parameters}).encode())


@pytest.mark.parametrize(
    ("contract", "error", "why"),
    [
        ({"count": 1 << 24, "fields": ["x", "y", "z"]}, LimitExceeded, "16777216 points of 3 fields; at most"),
        ({"count": 3, "fields": []}, BadEnvelope, "length >= 1"),
        ({"count": 0, "fields": ["x"]}, BadEnvelope, ">= 1"),
    ],
)
def test_a_card_that_wants_impossible_points(contract: dict[str, object], error: type[MqinferError], why: str) -> None:
    """A sender would make them."""
    with pytest.raises(error, match=why):
        card_from_json(json.dumps(BASE | {"parameters": {"points": [{"input": "x", **contract}]}}).encode())


def test_a_card_belongs_to_the_model_of_its_topic() -> None:
    """Access rules bind the topic alone; an empty payload is a card that was removed."""
    topics, payload = Topics(), json.dumps(BASE).encode()
    name = str(BASE["name"])
    model, card = read_card(topics, topics.card(name), payload)
    assert card is not None
    assert (model, card.name) == (name, name)
    assert read_card(topics, topics.card(name), b"") == (name, None)
    with pytest.raises(BadTopic, match="other"):
        read_card(topics, topics.card("other"), payload)
