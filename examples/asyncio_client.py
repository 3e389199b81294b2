"""Send requests from an asyncio loop: each task waits for its own result, and cancelling it cancels the request.

MQINFER_BROKER=mqtt://127.0.0.1:1883 python examples/asyncio_client.py MODEL
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np

from mqinfer import AsyncClient
from mqinfer.protocol.datatypes import dtype_of


async def main(model: str) -> None:
    """Ask twenty times at once, and print in what order the results came."""
    async with AsyncClient.from_env() as client:
        card = await client.card(model)
        inputs = {
            spec.name: np.zeros([max(size, 1) for size in spec.shape], dtype_of(spec.datatype)) for spec in card.inputs
        }
        tasks = [client.submit(model, inputs, timeout=5.0) for _ in range(20)]
        for number, task in enumerate(asyncio.as_completed(tasks), 1):
            result = await task
            print(f"{number:2}: {result.outcome} from {result.worker}, {result.timings.total / 1e6:.1f} ms")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
