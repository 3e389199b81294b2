"""`python -m mqinfer.bench`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mqinfer.bench import run
from mqinfer.bench.path import PathOptions
from mqinfer.bench.workloads import WORKLOADS
from mqinfer.protocol.errors import MqinferError


def main() -> int:
    """Measure mqinfer against a bare grpc.aio server and against no path at all, as the command line says."""
    parser = argparse.ArgumentParser("python -m mqinfer.bench", description=main.__doc__)
    defaults = PathOptions()
    parser.add_argument("--rounds", type=int, default=defaults.rounds, help="turns of each contestant")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="length of each turn")
    parser.add_argument("--callers", type=int, default=defaults.callers, help="requests at a time")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="several times for several")
    parser.add_argument("--output", type=Path, help="folder for bench.json and bench.md")
    parser.add_argument("--repository", type=Path, help="folder that holds the models, if they are built already")
    given = parser.parse_args()
    options = PathOptions(given.rounds, given.seconds, given.callers)
    try:
        run(options, given.workload or tuple(WORKLOADS), output=given.output, repository=given.repository)
    except MqinferError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
