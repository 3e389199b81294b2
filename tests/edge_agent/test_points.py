"""From points to tensors: order, number, padding, mask, and what is not finite."""

from __future__ import annotations

import math
import struct
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.bags.frame import Frame
from mqinfer.codecs import decode_tensor
from mqinfer.edge_agent.frames.table import PreparedFrame
from mqinfer.edge_agent.preparing.points import PointsPreparer
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import CardParameters, ModelCard, NotFinite, PointsContract
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import BadImage, ConfigError
from mqinfer.protocol.types import TensorSpec
from tests.bags.point_messages import cloud, field, imu

NOTHING = RawImage("", 0, 0, 0, is_bigendian=False, data=b"")
MAIN = PreparedFrame((), Placement.of((1, 1), (1, 1)), lambda: np.zeros((1, 1, 3), np.uint8), 3)
Shape = tuple[int, ...]


def frame_of(*messages: Any) -> Frame:
    """Make a frame of messages."""
    return Frame("/lidar", 7, 0, 0, "lidar", NOTHING, points=messages)


def points_of(*points: tuple[float, float]) -> Frame:
    """Make a frame of points with the fields x and y."""
    data = b"".join(struct.pack("<ff", *each) for each in points)
    fields = [field("x", 0, 7), field("y", 4, 7)]
    return frame_of(cloud(fields, (len(points), 1), (8, 8 * len(points)), data))


def preparer(
    contract: PointsContract, *shapes: Shape, batch: int = 1, mask: Datatype = Datatype.UINT8
) -> PointsPreparer:
    """Make a preparer for the input `p` and, where there is a second shape, the mask `m`."""
    kinds = [("p", Datatype.FP32), ("m", mask)]
    inputs = tuple(TensorSpec(*kind, shape) for kind, shape in zip(kinds, shapes, strict=False))
    how = CardParameters(max_batch_size=batch, encodings=("raw", "lz4", "shuffle-lz4"))
    return PointsPreparer.of(contract, ModelCard(name="fusion", platform="x", inputs=inputs, parameters=how), Counter())


def arrays(made: PointsPreparer, frame: Frame) -> list[Any]:
    """Return what a worker decodes."""
    prepared = made.prepare(frame, MAIN, lambda *_: None)
    assert {each.encoding for each in prepared.tensors} == {"shuffle-lz4"}
    assert [each.name for each in prepared.tensors] == ["p", "m"][: len(prepared.tensors)]
    return [decode_tensor(each) for each in prepared.tensors]


NUMBERS = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf])


@given(
    points=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12),
    most=st.integers(1, 9) | st.none(),
    not_finite=st.sampled_from(NotFinite),
    fields_first=st.booleans(),
)
def test_any_points(
    points: list[tuple[float, float]], most: int | None, not_finite: NotFinite, *, fields_first: bool
) -> None:
    """As a plain loop makes them, and each is counted once."""
    contract = PointsContract("p", ("y", "x"), most, -1.0, "m", not_finite, fields_first)
    size = most or -1
    made = preparer(contract, (1, 2, size) if fields_first else (1, size, 2), (1, size))
    rows, there = [], []
    lost = 0
    for x, y in points:
        is_finite = math.isfinite(x) and math.isfinite(y)
        lost += not is_finite and not_finite is not NotFinite.KEEP
        if is_finite or not_finite is NotFinite.KEEP:
            rows.append((y, x))
            there.append(1)
        elif not_finite is NotFinite.PAD:
            rows.append((-1.0, -1.0))
            there.append(0)
    too_many = max(0, len(rows) - (most or len(rows)))
    if too_many and most:
        chosen = [number * len(rows) // most for number in range(most)]
        rows, there = [rows[each] for each in chosen], [there[each] for each in chosen]
    while most and len(rows) < most:
        rows.append((-1.0, -1.0))
        there.append(0)
    found, mask = arrays(made, points_of(*points))
    wanted = np.array(rows, np.float32).reshape(-1, 2)
    np.testing.assert_array_equal(found, (wanted.T if fields_first else wanted)[None])
    assert mask.tolist() == [there]
    counts = {"read": len(points), "not_finite": lost, "left_out": too_many}
    assert made.counts == {("/lidar", what): count for what, count in counts.items()}


@pytest.mark.parametrize(
    ("fields", "batch", "shapes"),
    [
        (("x",), 1, [(1, 3), (1, 3)]),
        (("x",), 0, [(3,), (3,)]),
        (("x", "y"), 0, [(3, 2), (3,)]),
        (("x", "y"), 0, [(1, 3, 2), (1, 3)]),
        (("x", "y"), 8, [(-1, 3, 2), (-1, 3)]),
    ],
)
def test_axes(fields: tuple[str, ...], batch: int, shapes: list[Shape]) -> None:
    """As many as the model has, with a batch of one where it has that axis."""
    made = preparer(PointsContract("p", fields, 3, mask="m"), *shapes, batch=batch, mask=Datatype.BOOL)
    found, mask = arrays(made, points_of((1, 2), (3, 4)))
    assert found.shape == tuple(map(abs, shapes[0]))
    assert found.ravel().tolist() == ([1, 3, 0] if len(fields) == 1 else [1, 2, 3, 4, 0, 0])
    assert mask.tolist() in ([[True, True, False]], [True, True, False])


def test_the_last_samples() -> None:
    """Of more than the model takes."""
    made = preparer(PointsContract("p", ("angular_velocity.x",), 3), (1, 3))
    assert arrays(made, frame_of(*map(imu, range(9))))[0].tolist() == [[6.25, 7.25, 8.25]]
    assert +made.counts == {("/lidar", "read"): 3}


def test_what_has_no_points() -> None:
    """A picture has none, and a card may name inputs that are not there."""
    made = preparer(PointsContract("p", ("x",), 3), (1, 3))
    with pytest.raises(BadImage, match="it has pictures, and the input 'p' takes points"):
        made.prepare(frame_of(), MAIN, lambda *_: None)
    for contract in (PointsContract("no", ("x",), 3), PointsContract("m", ("x",), 3)):
        with pytest.raises(
            ConfigError, match=f"of model 'fusion' states points for inputs .* '{contract.input}' of float"
        ):
            preparer(contract, (1, 3), (1, 3))
    with pytest.raises(ConfigError, match="'p' of floating point and 'm'"):
        preparer(PointsContract("p", ("x",), 3, mask="m"), (1, 3), (1, 3), mask=Datatype.BYTES)
