"""The rules that docs/security.md gives for a broker that is already there are those that are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqinfer.broker.mosquitto import Role, access_rules
from mqinfer.protocol.topics import Topics

TEXT = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("role", "name"),
    [(Role.VEHICLE, "car-1"), (Role.WORKER, "gpu-1"), (Role.DASHBOARD, "wall"), (Role.OPERATOR, "ann")],
)
def test_rules_in_the_documentation(role: Role, name: str) -> None:
    """Line by line, with one process of a worker."""
    found = re.search(rf"```\nuser {name}\n(.*?)```", TEXT, re.DOTALL)
    assert found
    assert found[1].splitlines() == [f"topic {rule}" for rule in access_rules(role, name, Topics(), 1)]
