"""Send arrays to a model, one by one and many at a time, and read the results.

    mqinfer broker --port 1883 &
    mqinfer worker --repository models --broker mqtt://127.0.0.1:1883 &
    MQINFER_BROKER=mqtt://127.0.0.1:1883 python examples/blocking.py MODEL

The model's card says what it takes; this sends zeros.
"""

from __future__ import annotations

import sys

import numpy as np

from mqinfer import Client, ClientOptions
from mqinfer.errors import MqinferError, Unanswered
from mqinfer.protocol.datatypes import dtype_of


def main(model: str) -> int:
    """Ask once, then twenty times at once; return the exit code."""
    with Client.from_env(options=ClientOptions(timeout=30.0)) as client:
        inputs = {
            spec.name: np.zeros([max(size, 1) for size in spec.shape], dtype_of(spec.datatype))
            for spec in client.card(model).inputs
        }
        result = client.infer(model, inputs)
        for name, array in result.outputs.items():
            print(f"{name}: {array.dtype} {array.shape} from {result.worker}, version {result.model_version}")

        futures = [client.submit(model, inputs, timeout=5.0) for _ in range(20)]
        done = 0
        for future in futures:
            try:
                future.result()
            except Unanswered as error:  # busy, too late, no worker: asking again may succeed
                print(f"no answer: {error}")
            except MqinferError as error:  # the request or the model is at fault: asking again does not help
                print(f"failed: {error}")
            else:
                done += 1
        print(f"{done} of {len(futures)} answered")
        return 0 if done == len(futures) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
