"""The systemd units of examples/systemd: systemd accepts them, and they restart what a restart can help."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from mqinfer.cli.exit_codes import ExitCode
from tests.docs.blocks import ROOT
from tests.docs.test_blocks import unknown
from tests.docs.test_help import COMMANDS
from tests.programs import find_program

SAMPLES = sorted((ROOT / "examples" / "systemd").glob("*.env"))
UNITS = {path.name: path for path in sorted((ROOT / "examples" / "systemd").glob("*.service"))}


def values(unit: str, key: str) -> list[str]:
    """Return the values of a key in a unit."""
    return re.findall(rf"^{key}=(.*)$", UNITS[unit].read_text(encoding="utf-8"), re.MULTILINE)


def test_each_program_has_a_unit() -> None:
    """Broker, worker, edge, gateway and dashboard."""
    assert list(UNITS) == [f"mqinfer-{name}.service" for name in ("broker", "dashboard", "edge", "gateway", "worker")]


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_restarted(unit: str) -> None:
    """Everything but wrong configuration and what is refused: with the exit codes of the command."""
    assert values(unit, "Restart") == ["always"]
    assert values(unit, "RestartPreventExitStatus") == [f"{ExitCode.USAGE:d} {ExitCode.REFUSED:d}"]
    assert values(unit, "StartLimitIntervalSec") == ["0"]


def test_an_edge_may_open_cameras() -> None:
    """Their devices belong to a group of the system."""
    assert values("mqinfer-edge.service", "SupplementaryGroups") == ["video"]


@pytest.mark.parametrize("unit", UNITS)
def test_its_command_exists(unit: str) -> None:
    """The subcommand and each option."""
    (command,) = values(unit, "ExecStart")
    program, *words = command.split()
    assert program.endswith("/bin/mqinfer")
    assert unknown(words) == []


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_it(unit: str, tmp_path: Path) -> None:
    """`systemd-analyze verify`, with a program in place of the one that is not installed here."""
    copy = tmp_path / unit
    copy.write_text(UNITS[unit].read_text(encoding="utf-8").replace("/opt/mqinfer/bin/mqinfer", "/bin/true"), "utf-8")
    done = subprocess.run(
        [find_program("systemd-analyze"), "verify", str(copy)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if unit in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_each_environment_has_a_sample() -> None:
    """With the variables that the unit needs, and no others than mqinfer knows."""
    listed = [part.envvar or [] for command in COMMANDS.values() for part in command.params]
    known = {name for names in listed for name in ([names] if isinstance(names, str) else names)}
    files = [Path(name) for unit in UNITS for name in values(unit, "EnvironmentFile")]
    assert {path.name for path in files} == {path.name for path in SAMPLES}
    for sample in SAMPLES:
        text = sample.read_text(encoding="utf-8")
        names = set(re.findall(r"^(\w+)=", text, re.MULTILINE))
        needed = set(re.findall(r"\$\{(\w+)\}", UNITS[f"mqinfer-{sample.stem}.service"].read_text(encoding="utf-8")))
        assert needed <= names
        assert names - needed <= known
