"""docs/reference/security.md: its rules are those that are written; each line on a role names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqinfer.broker.mosquitto import Role, access_rules
from mqinfer.protocol.topics import Topics

TESTS = Path(__file__).parents[2]
TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
TEXT = (TESTS.parent / "docs" / "reference" / "security.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("role", "name"),
    [
        (Role.VEHICLE, "car-1"),
        (Role.WORKER, "gpu-1"),
        (Role.DASHBOARD, "wall"),
        (Role.OPERATOR, "ann"),
        (Role.GATEWAY, "gw-1"),
        (Role.BRIDGE, "plant-bridge"),
        (Role.SITE, "plant"),
    ],
)
def test_rules_in_the_documentation(role: Role, name: str) -> None:
    """Line by line, with one process of a worker, and without a vehicle's sub-names."""
    found = re.search(rf"```\nuser {name}\n(.*?)```", TEXT, re.DOTALL)
    assert found
    assert found[1].splitlines() == [f"topic {rule}" for rule in access_rules(role, name, Topics(), 1, ())]


def lines() -> list[list[str]]:
    """The cells of each line on what a role can still do: attempt, what happens, tests."""
    found = re.search(r"^## What each role can still do to others\n(.*?)^## ", TEXT, re.DOTALL | re.MULTILINE)
    assert found
    rows = [line.strip("|").split(" | ") for line in found[1].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() not in {"attempt", "---|---|---"}]


def test_each_line_on_a_role_names_its_tests() -> None:
    """A test that is renamed or removed takes its line of the page with it."""
    written = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    there = set(TEST.findall(written))
    assert len(lines()) > 40
    for attempt, happens, tests in lines():
        assert attempt
        assert happens
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, attempt
        assert set(named) <= there, attempt


def test_each_test_of_a_role_stands_on_the_page() -> None:
    """A new attempt belongs there."""
    for name in ("test_roles.py", "test_outside.py"):
        tests = set(TEST.findall(Path(__file__).with_name(name).read_text(encoding="utf-8")))
        assert tests <= {each for *_, cell in lines() for each in re.findall(r"`(test_\w+)`", cell)}
