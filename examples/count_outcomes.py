"""Count the outcomes of replays, and the frames that each worker answered: results.jsonl, and times.jsonl beside it.

    python examples/count_outcomes.py results.jsonl [results.jsonl ...]

Ends with exit code 1 if a frame has no outcome `ok`, or more than one outcome.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def main(paths: list[str]) -> int:
    """Print the counts; return the exit code."""
    outcomes: Counter[str] = Counter()
    workers: Counter[str] = Counter()
    frames: Counter[tuple[str, str, int]] = Counter()
    for path in paths:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            result = json.loads(line)
            outcomes[result["outcome"]] += 1
            frames[path, result["source"], result["sequence"]] += 1
        for line in Path(path).with_name("times.jsonl").read_text(encoding="utf-8").splitlines():
            workers[json.loads(line)["worker"]] += 1
    twice = sum(count > 1 for count in frames.values())
    print(f"{len(frames)} frames, outcomes {dict(outcomes)}, {twice} with more than one")
    for worker, count in sorted(workers.items()):
        print(f"  {worker} answered {count}")
    return 0 if set(outcomes) == {"ok"} and not twice else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
