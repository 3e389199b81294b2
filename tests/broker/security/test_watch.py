"""Who may watch results of others, on a real secured broker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mqinfer import Capture, Client, DropReason, SeenPreview, SeenResult
from mqinfer.codecs import encode_tensor
from mqinfer.protocol.envelope import encode_response
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferResponse
from tests.broker.attempts import PATIENCE, opened, publish

pytestmark = pytest.mark.broker
T = Topics()
CAPTURE = Capture("/camera", 3)


def test_a_dashboard_and_no_other(secured: Any) -> None:
    """A dashboard's login receives results and previews; a vehicle's gets its own results, and none of others."""
    result = encode_response(InferResponse("r1", "watched", capture=CAPTURE))
    tensors = (encode_tensor("preview", np.zeros((8, 8, 3), np.uint8), "jpeg"),)
    size = {"picture_width": 8, "picture_height": 8}
    preview = InferResponse("p1", "watched", outputs=tensors, capture=CAPTURE, parameters=size)
    worker, car = opened(secured, "w", "w"), opened(secured, "car-1", "car-1")
    with (
        Client(secured.address("dash")) as dashboard,
        dashboard.watch("watched", with_previews=True) as seen,
        Client(secured.address("car-2")) as vehicle,
        vehicle.watch("watched", with_previews=True) as other,
    ):
        publish(car, T.preview("car-1", "/camera"), encode_response(preview))
        for client in ("car-1", "car-2"):
            publish(worker, T.result("watched", client, "r1"), result)
        found = [seen.next(PATIENCE) for _ in range(3)]
        assert [(type(each), each.client) for each in found if each] == [
            (SeenPreview, "car-1"),
            (SeenResult, "car-1"),
            (SeenResult, "car-2"),
        ]
        own = other.next(PATIENCE)
        assert own
        assert own.client == "car-2"
        assert other.counters().received == 1
    worker.close()
    car.close()


def test_what_a_worker_says_of_another_model(secured: Any) -> None:
    """Workers may publish on all topics of results; a payload that names another model or request is dropped."""
    worker = opened(secured, "w", "w")
    with Client(secured.address("dash")) as dashboard, dashboard.watch("watched") as seen:
        for model, request in (("other", "r1"), ("watched", "r2"), ("watched", "r1")):
            payload = encode_response(InferResponse(request, model, capture=CAPTURE))
            publish(worker, T.result("watched", "car-1", "r1"), payload)
        found = seen.next(PATIENCE)
        assert found
        assert found.request_id == "r1"
        assert seen.counters().dropped == {DropReason.TOPIC_MISMATCH: 2}
    worker.close()
