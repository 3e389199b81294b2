"""Requests in JSON, as `mosquitto_pub` would send them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.protocol.oip_json import HEADER_LENGTH

GatedWorker = Callable[..., tuple[Worker, Any]]
X = np.arange(4, dtype=np.float32).reshape(1, 4)
DATA = '"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 1, 2, 3]}]'


@pytest.mark.parametrize("content_type", [None, "application/json", "application/json; charset=utf-8"])
def test_json_is_answered_in_json(gated_worker: GatedWorker, bare: Any, content_type: str | None) -> None:
    """A plain publication with the Open Inference Protocol's JSON, with and without its Content Type."""
    gated_worker()
    bare.link.publish(bare.text("  {" + DATA + ', "id": "7"}', content_type=content_type, correlation_data=b"mine"))
    reply = bare.next()
    body = json.loads(bytes(reply.payload))
    assert (reply.content_type, reply.correlation_data) == ("application/json", b"mine")
    assert (body["id"], body["model_name"], body["outputs"][0]["data"]) == ("7", "echo", [0, 1, 2, 3])


def test_json_asks_for_top_classes(gated_worker: GatedWorker, bare: Any) -> None:
    """The Open Inference Protocol's own place for it: a parameter of the requested output."""
    gated_worker()
    wanted = '"outputs": [{"name": "x", "parameters": {"classification": 2}}]'
    bare.link.publish(bare.text("{" + DATA + ", " + wanted + "}"))
    (output,) = json.loads(bytes(bare.next().payload))["outputs"]
    assert output == {"name": "x", "datatype": "BYTES", "shape": [1, 2], "data": ["3.000000:3", "2.000000:2"]}


@pytest.mark.parametrize("identity", ['"id": "1", ', ""])
def test_json_under_the_same_id_is_answered_anew(gated_worker: GatedWorker, bare: Any, identity: str) -> None:
    """A script that uses one id, or none, for everything gets an answer to each of its questions."""
    gated_worker()
    for number in (1, 2):
        bare.link.publish(bare.text("{" + identity + DATA.replace("[0, 1", f"[{number}, 1") + "}"))
        body = json.loads(bytes(bare.next().payload))
        assert body["outputs"][0]["data"] == [number, 1, 2, 3]


def test_json_with_a_binary_tail(gated_worker: GatedWorker, bare: Any) -> None:
    """The tensor stands behind the JSON, in the request and in the reply."""
    gated_worker()
    head = json.dumps(
        {
            "id": "1",
            "parameters": {"binary_data_output": True},
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": X.nbytes}}
            ],
        }
    )
    message = bare.text(head, user_properties=((HEADER_LENGTH, str(len(head))),))
    bare.link.publish(replace(message, payload=head.encode() + X.tobytes()))
    reply = bare.next()
    length = int(dict(reply.user_properties)[HEADER_LENGTH])
    assert json.loads(bytes(reply.payload)[:length])["outputs"][0]["parameters"]["binary_data_size"] == X.nbytes
    np.testing.assert_array_equal(np.frombuffer(bytes(reply.payload)[length:], np.float32), X[0])


@pytest.mark.parametrize(
    ("body", "length", "code"),
    [
        ("{", None, "bad_envelope"),
        ("{}", None, "bad_tensor"),
        ("{" + DATA + "}", "x", "bad_envelope"),
        ("{" + DATA + "}", "9" * 5000, "bad_envelope"),
        ("{" + DATA + "}", "100000", "bad_envelope"),
        ("{" + DATA.replace("FP32", "FP99") + "}", None, "bad_tensor"),
        ("{" + DATA.replace("[1, 4]", "[9999999999, 9999999999]") + "}", None, "limit_exceeded"),
        ("{" + DATA.replace("3]", "3, 4]") + "}", None, "bad_tensor"),
    ],
)
def test_bad_json_is_answered_by_its_error(
    gated_worker: GatedWorker, bare: Any, body: str, length: str | None, code: str
) -> None:
    """The reply says in JSON what is wrong, and the next request works."""
    gated_worker()
    properties = () if length is None else ((HEADER_LENGTH, length),)
    bare.link.publish(bare.text(body, user_properties=properties, content_type="application/json"))
    reply = json.loads(bytes(bare.next().payload))
    assert reply["parameters"]["error_code"] == code, reply
    bare.link.publish(bare.text("{" + DATA + "}"))
    assert "outputs" in json.loads(bytes(bare.next().payload))
