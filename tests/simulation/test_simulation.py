from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.removed_rules import RULES
from tests.simulation.runs import simulate

_RUNS = 300
_ENOUGH = 1000


@pytest.mark.parametrize("hundred", range(_RUNS // 100))
def test_no_rule_is_broken(hundred: int) -> None:
    """Whatever is lost, doubled, late, killed or halted: each request ends once, in time, and right."""
    broken = {seed: found for seed in range(100 * hundred, 100 * hundred + 100) if (found := simulate(seed).violations)}
    assert not broken


def test_no_rule_is_broken_over_nats() -> None:
    """Nor where wills come seconds late, after what the next process of a name has said."""
    broken = {seed: found for seed in range(_RUNS // 3) if (found := simulate(seed, is_nats=True).violations)}
    assert not broken


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_removed_is_missed(rule: str) -> None:
    """Without the rule some run of the first thousand breaks a promise."""
    for seed in range(_ENOUGH):
        with RULES[rule]():
            report = simulate(seed)
        if report.violations:
            return
    pytest.fail(f"{_ENOUGH} runs without the rule that {rule}, and nothing was noticed")


def test_a_seed_replays() -> None:
    """The same seed is the same run, also in another process with other hashes of strings."""
    for seed in (3, 464, 647):
        assert simulate(seed, traced=True).digest == simulate(seed, traced=True).digest
    here = [simulate(seed, traced=True).digest[:16] for seed in (3, 647)]
    code = "from tests.simulation.runs import simulate; print([simulate(s, traced=True).digest[:16] for s in (3, 647)])"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(root)}
    there = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, check=True)
    assert there.stdout.decode().strip() == str(here)
