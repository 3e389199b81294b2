"""Document 000: one request as each protocol writes it, in bytes and in time."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from mqinfer.bench.contestants.ways import predict_body, predict_maker, request_maker
from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.rows import Measured, of_rounds
from mqinfer.bench.workloads import Workload
from mqinfer.client.request import make_request
from mqinfer.extras import check_packages
from mqinfer.lab.load import call_times
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.envelope import encode_request

_SHAPES = ((16,), (224, 224, 3), (608, 608, 3))
_MODEL, _INPUT = "model", "input"


def messages(bench: Bench) -> Iterator[Measured]:
    """Write and read one request with a float32 tensor of three sizes in six forms."""
    check_packages({"google.protobuf": "protobuf"}, "gateway")
    rounds, ratios = bench.count(3, 20), list[float]()
    for shape in _SHAPES:
        array = np.random.default_rng(0).random(shape, np.float32)
        name = "x".join(map(str, shape))
        forms = _forms(array)
        for form, make in forms.items():
            yield of_rounds("000.S11", f"[{name}] {form}, bytes", [len(make())])
        pairs: Mapping[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "read": (partial(_from_json, forms["JSON numbers"]()), partial(_from_protobuf, forms["OIP protobuf"]())),
            "write": (forms["JSON numbers"], forms["OIP protobuf"]),
        }
        for word, (one, other) in pairs.items():
            ratios = [_seconds(one) / _seconds(other) for _ in range(rounds)]
            row = f"[{name}] JSON numbers against OIP protobuf: time to {word}"
            yield of_rounds("000.S11", row, ratios, comment=f"JSON takes {1e3 * _seconds(one):.3g} ms")
    yield of_rounds("001.S4", "JSON against gRPC: time of a message", ratios, comment="[608x608x3], to write")


def _forms(array: Array) -> Mapping[str, Callable[[], bytes]]:
    asked = Workload(_MODEL, _MODEL, Path(_MODEL), _INPUT, array, "output", array)

    def text() -> bytes:
        content = base64.b64encode(array.tobytes()).decode()
        return json.dumps({"inputs": {_INPUT: {"b64": content, "shape": list(array.shape)}}}).encode()

    def xml() -> bytes:
        return f"<input>{''.join(f'<v>{value}</v>' for value in array.ravel().tolist())}</input>".encode()

    return {
        "OIP protobuf": partial(request_maker(asked), array),
        "TFS protobuf": partial(predict_maker(asked), array),
        "mqinfer": lambda: encode_request(make_request(_MODEL, {_INPUT: array}, {})),
        "JSON numbers": lambda: predict_body(asked, array)[0],
        "JSON base64": text,
        "XML": xml,
    }


def _from_protobuf(data: bytes) -> Array:
    from mqinfer.gateway.messages import message_class

    request = message_class("inference.ModelInferRequest").FromString(data)
    return np.frombuffer(request.raw_input_contents[0], np.float32)


def _from_json(text: bytes) -> Array:
    return np.array(json.loads(text)["inputs"][_INPUT], np.float32)


def _seconds(work: Callable[[], object]) -> float:
    """Return the least of three times, the one that other programs disturbed least."""
    return float(min(call_times(work, 3)))
