"""`python -m tests.fuzz [--seconds N | --runs N] [TARGET]...`: fuzz decoders, guided by coverage.

Without atheris (`pip install '.[fuzz]'`) the Hypothesis tests run instead: the same decoders, without guidance.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import pytest

_NIGHT_S = 8 * 3600
_TESTS = ("tests/protocol", "tests/codecs", "tests/broker/test_packets.py", "tests/fuzz/test_bombs.py")


def main() -> int:
    """Run; 1 where anything was found."""
    options = _options()
    if find_spec("atheris") is None:
        sys.stdout.write("atheris is not installed (pip install '.[fuzz]'): running the Hypothesis tests instead\n")
        sys.stdout.flush()
        return int(pytest.main(list(_TESTS)))
    from tests.fuzz.campaign import run_all

    work = options.work or Path(mkdtemp(prefix="mqinfer-fuzz-"))
    seconds = options.seconds or (0 if options.runs else _NIGHT_S)
    return run_all(options.targets, runs=options.runs, seconds=seconds, seed=options.seed, work=work)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="see docs/reference/fuzzing.md; default: all")
    parser.add_argument("--runs", type=int, default=0, help="inputs, shared among the targets")
    parser.add_argument("--seconds", type=int, default=0, help="time, shared likewise; 8 hours if neither is given")
    parser.add_argument("--seed", type=int, default=1, help="of all chance")
    parser.add_argument(
        "--work", type=Path, default=None, help="folder for corpus, findings and figures; goes on there"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
