"""Every datatype, odd shapes, strings and TensorFlow 1's SavedModels, through a real broker and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mqinfer import Client
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.protocol import oip_json
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferRequest
from tests.json_requests import encode_request
from tests.onnx_files import save_onnx

pytestmark = [pytest.mark.broker, pytest.mark.slow]
Serve = Callable[[Path], Topics]
SaveTf1 = Callable[..., Path]
Ask = Callable[[str, Mapping[str, Array]], Mapping[str, Array]]

ONNX_NAMES = {"FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE", "BYTES": "STRING"}
TF_NAMES = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BYTES": "string"}
ALL = tuple(Datatype)
SHAPES = [(2, 3), (0, 3), (3, 0), (1, 1)]


def write_onnx(path: Path, axes: list[str], names: Sequence[str] = ALL) -> None:
    """Write a model whose output `y_FP32` is its input `FP32`, for every datatype."""
    types = [(name, getattr(TensorProto, ONNX_NAMES.get(name, name))) for name in names]
    nodes = [helper.make_node("Identity", [name], [f"y_{name}"]) for name in names]
    inputs, outputs = ({f"{mark}{name}": (kind, axes) for name, kind in types} for mark in ("", "y_"))
    save_onnx(path, nodes, inputs, outputs)


def write_saved_model(tf: Any, path: Path, axes: list[None], names: Sequence[str] = ALL) -> None:
    """Write the same as a SavedModel of TensorFlow 2."""
    specs = {name: tf.TensorSpec(axes, TF_NAMES.get(name, name.lower()), name=name) for name in names}

    def identity(**tensors: Any) -> dict[str, Any]:
        return {f"y_{name}": tf.identity(tensor) for name, tensor in tensors.items()}

    module = tf.Module()
    module.identity = tf.function(identity)
    tf.saved_model.save(module, path, signatures=module.identity.get_concrete_function(**specs))


@pytest.fixture(scope="module")
def identities(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of models that return their inputs: two engines, two axes and none, with and without FP16."""
    repository = tmp_path_factory.mktemp("identities")
    for suffix, names in (("", ALL), ("_json", [name for name in ALL if name != "FP16"])):
        write_onnx(repository / f"onnx_table{suffix}" / "1" / "model.onnx", ["rows", "columns"], names)
        write_onnx(repository / f"onnx_scalar{suffix}" / "1" / "model.onnx", [], names)
        write_saved_model(tf, repository / f"tf_table{suffix}" / "1", [None, None], names)
        write_saved_model(tf, repository / f"tf_scalar{suffix}" / "1", [], names)
    return repository


def sample(datatype: Datatype, shape: tuple[int, ...]) -> Array:
    """Make an array of random bits: also NaNs with a payload, infinities, subnormals; strings of UTF-8."""
    random = np.random.default_rng(len(shape) + sum(shape))
    count = int(np.prod(shape, dtype=int))
    if datatype is Datatype.BYTES:
        strings = np.empty(count, np.object_)
        strings[:] = [("ä€𝄞" * int(size)).encode() for size in random.integers(0, 9, count)]
        return strings.reshape(shape)
    if datatype is Datatype.BOOL:
        return random.integers(0, 2, shape).astype(np.bool_)
    dtype = dtype_of(datatype)
    return np.frombuffer(random.bytes(count * dtype.itemsize), dtype).reshape(shape)


def finite(array: Array) -> Array:
    """Replace NaN by zero: JSON has one NaN for all of them."""
    return np.nan_to_num(array, nan=0.0, posinf=None) if array.dtype.kind == "f" else array


def same(one: Array, other: Array) -> bool:
    """Whether two arrays are equal bit by bit."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype.kind == "O" else one.tobytes() == other.tobytes()


def differing(sent: Mapping[str, Array], received: Mapping[str, Array]) -> list[str]:
    """Return the names of the inputs that changed on the way."""
    return [name for name, array in sent.items() if not same(array, received[f"y_{name}"])]


def test_every_datatype_and_odd_shapes(identities: Path, serving: Serve, broker_url: str) -> None:
    """BOOL to FP64 and BYTES, empty and 0-d arrays return bit by bit from ONNX Runtime and from TensorFlow."""
    with Client(broker_url, root=serving(identities).root) as client:
        for engine in ("onnx", "tf"):
            for shape in [*SHAPES, ()]:
                model = f"{engine}_{'table' if shape else 'scalar'}"
                sent: dict[str, Array] = {name: sample(name, shape) for name in Datatype}
                received = client.infer(model, sent, timeout=30).outputs
                assert differing(sent, received) == [], (model, shape)


@pytest.fixture
def ask_json(broker_url: str, unique: Callable[[str], str]) -> Iterator[Callable[[Topics, bool], Ask]]:
    """Send requests without mqinfer's client: Open Inference Protocol JSON, with or without a binary tail."""
    name = unique("stranger")
    link = make_link(broker_url, client_id=name)
    link.open()
    replies: SimpleQueue[Message] = SimpleQueue()

    def prepare(topics: Topics, binary: bool) -> Ask:  # noqa: FBT001 - the fixture's own
        link.subscribe(topics.result.filter(client=name), replies.put)

        def ask(model: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            tensors = tuple(encode_tensor(each, array) for each, array in inputs.items())
            wishes = {oip_json.BINARY_OUTPUT: binary}
            request = InferRequest(id=model, model_name=model, inputs=tensors, parameters=wishes)
            payload, length = encode_request(request, binary=binary)
            properties = () if length is None else ((oip_json.HEADER_LENGTH, str(length)),)
            reply_to = topics.result(model, name, "1")
            link.publish(
                Message(
                    topics.infer(model, name),
                    payload,
                    content_type=oip_json.CONTENT_TYPE,
                    response_topic=reply_to,
                    user_properties=properties,
                )
            )
            reply = replies.get(timeout=30)
            assert checksum((reply.payload,)) in reply.user_properties
            tail = dict(reply.user_properties).get(oip_json.HEADER_LENGTH)
            response = oip_json.decode_response(reply.payload, None if tail is None else int(tail))
            assert response.error is None
            return {tensor.name: decode_tensor(tensor) for tensor in response.outputs}

        return ask

    yield prepare
    link.close()


@pytest.mark.parametrize("binary", [False, True])
def test_json_carries_the_same(
    identities: Path, serving: Serve, ask_json: Callable[[Topics, bool], Ask], *, binary: bool
) -> None:
    """JSON with a binary tail returns them too; plain JSON has no FP16 and one NaN, the rest is equal bit by bit."""
    ask = ask_json(serving(identities), binary)
    for engine in ("onnx", "tf"):
        for shape in [*SHAPES, ()]:
            model = f"{engine}_{'table' if shape else 'scalar'}"
            sent: dict[str, Array] = {name: sample(name, shape) for name in Datatype}
            if not binary:
                model += "_json"
                del sent[Datatype.FP16]
                sent = {name: finite(array) for name, array in sent.items()}
            assert differing(sent, ask(model, sent)) == [], (model, shape)


@pytest.fixture
def half_plus_three(tf: Any, save_tf1: SaveTf1, tmp_path: Path) -> Path:
    """A repository with a model like TensorFlow Serving's `saved_model_half_plus_three`: y = x / 2 + 3.

    It has variables, an asset, a table that is filled from the asset, and signatures to predict and to regress, the
    latter on serialised examples of unknown rank. Like that of 2016 it is written as an old graph.
    """
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("road\ncar\ntree\n")

    def build(v1: Any) -> tuple[dict[str, Any], Any]:
        half, three = v1.Variable(0.5, name="a"), v1.Variable(3.0, name="b")
        examples = v1.placeholder(tf.string, name="tf_example")
        features = tf.raw_ops.ParseExample(
            serialized=examples,
            names=tf.constant([], tf.string),
            sparse_keys=[],
            dense_keys=["x"],
            dense_defaults=[tf.constant([], tf.float32)],
            sparse_types=[],
            dense_shapes=[[1]],
        )
        x = tf.identity(features.dense_values[0], name="x")
        y = tf.identity(half * x + three, name="y")
        words = v1.placeholder(tf.string, [None], name="words")
        asset = tf.constant(str(vocabulary))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        table = v1.lookup.StaticHashTable(
            v1.lookup.TextFileInitializer(
                asset,
                tf.string,
                v1.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                v1.lookup.TextFileIndex.LINE_NUMBER,
            ),
            -1,
        )
        define = v1.saved_model.signature_def_utils
        signatures = {
            "serving_default": define.predict_signature_def({"x": x}, {"y": y}),
            "regress_x_to_y": define.regression_signature_def(examples, y),
            "look_up": define.predict_signature_def({"words": words}, {"numbers": table.lookup(words)}),
        }
        return signatures, v1.tables_initializer()

    repository = tmp_path / "repository"
    for signature in ("serving_default", "regress_x_to_y", "look_up"):
        save_tf1(repository / signature / "1", build, old=True)
        (repository / signature / "model.toml").write_text(f'[parameters]\nsignature = "{signature}"\n')
    vocabulary.unlink()
    return repository


def test_half_plus_three_of_tensorflow_1(tf: Any, half_plus_three: Path, serving: Serve, broker_url: str) -> None:
    """A SavedModel for TensorFlow 1's loader predicts, regresses serialised examples and looks words up."""
    with pytest.raises(ValueError, match="rank"):
        tf.saved_model.load(half_plus_three / "look_up" / "1")

    def example(x: float) -> bytes:
        feature = tf.train.Feature(float_list=tf.train.FloatList(value=[x]))
        return bytes(tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString())

    with Client(broker_url, root=serving(half_plus_three).root) as client:
        predicted = client.infer("serving_default", {"x": np.array([[1], [2], [5]], np.float32)}, timeout=30)
        examples = np.array([example(x) for x in (1, 2, 5)], np.object_)
        regressed = client.infer("regress_x_to_y", {"inputs": examples}, timeout=30)
        looked_up = client.infer("look_up", {"words": np.array(["tree", "sky", "road"])}, timeout=30)

    assert predicted.outputs["y"].ravel().tolist() == [3.5, 4.0, 5.5]
    assert regressed.outputs["outputs"].ravel().tolist() == [3.5, 4.0, 5.5]
    assert looked_up.outputs["numbers"].tolist() == [2, -1, 0]


def test_strings_that_are_no_text(tf: Any, tmp_path: Path, serving: Serve, broker_url: str) -> None:
    """TensorFlow returns any bytes, empty ones and zeros included; the reply may be compressed."""
    write_saved_model(tf, tmp_path / "strings" / "1", [None], ["BYTES"])
    strings = np.array([b"", b"\0\xff\0", bytes(range(256)) * 40], np.object_)
    with Client(broker_url, root=serving(tmp_path).root) as client:
        for encoding in ("raw", "lz4"):
            wishes = {"encoding": encoding, "output_encoding": encoding}
            result = client.infer("strings", {"BYTES": strings}, timeout=30, **wishes)  # type: ignore[arg-type] # no key is other than text
            assert result.outputs["y_BYTES"].tolist() == strings.tolist()
