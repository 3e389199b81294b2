"""What the other tests of the gateway stand on: each small model answers as it is described."""

from __future__ import annotations

import numpy as np

from mqinfer.gateway.calls import InferCall
from mqinfer.protocol.datatypes import Datatype, dtype_of
from mqinfer.protocol.types import EncodedTensor
from tests.gateway.conftest import OpenCore
from tests.gateway.models import IDENTITIES


async def test_small_models_answer(open_core: OpenCore) -> None:
    """Sums, strings and all datatypes come back through core, broker and worker."""
    ones, count = np.ones((1, 16), "<i4"), np.arange(16, dtype="<i4")[None]
    numbers = tuple(
        EncodedTensor(name, Datatype.INT32, (1, 16), "raw", array.tobytes())
        for name, array in (("INPUT0", count), ("INPUT1", ones))
    )
    kinds = [Datatype(name) for name in IDENTITIES if name != "BYTES"]
    given = [EncodedTensor(kind, kind, (1,), "raw", np.ones(1, dtype_of(kind)).tobytes()) for kind in kinds]
    given.append(EncodedTensor("BYTES", Datatype.BYTES, (1,), "raw", b"\x02\0\0\0\0a"))
    async with open_core() as core:
        sums = (await core.infer(InferCall("simple", None, numbers))).outputs
        np.testing.assert_array_equal(sums["OUTPUT0"], count + 1)
        np.testing.assert_array_equal(sums["OUTPUT1"], count - 1)
        outputs = (await core.infer(InferCall("all_types", None, tuple(given)))).outputs
        for kind in kinds:
            assert outputs[f"{kind}_OUT"].tobytes() == np.ones(1, dtype_of(kind)).tobytes()
        assert outputs["BYTES_OUT"].tolist() == [b"\0a"]
