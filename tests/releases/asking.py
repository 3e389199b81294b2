"""A client of the version on the path: keeps requests in flight until its input ends, and prints who replied."""

from __future__ import annotations

import sys
import threading

import numpy as np

import mqinfer
from mqinfer import Client

X = np.zeros((1, 4), np.float32)
WINDOW = 4


def main(url: str, root: str) -> None:
    """Print the package's file, then for each request the worker that replied, or `failed: …`."""
    ended = threading.Event()

    def read() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=read, name="input", daemon=True).start()
    print(mqinfer.__file__, flush=True)  # noqa: T201 - what the test reads
    with Client(url, root=root) as client:
        while not ended.is_set():
            for future in [client.submit("echo", {"x": X}, timeout=120) for _ in range(WINDOW)]:
                error = future.exception()
                print(f"failed: {error!r}" if error else future.result().worker, flush=True)  # noqa: T201


main(*sys.argv[1:])
