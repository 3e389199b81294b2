"""Programs of this machine that tests call: without one its tests fail, since scripts/setup installs them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

__all__ = ["find_program"]

_NODE = Path(__file__).parents[1] / ".venv" / "node"
"""Where scripts/npm puts node, if the machine's is absent or too old."""


def find_program(*names: str) -> str:
    """Return the path of the first of these programs that is here."""
    path = os.pathsep.join((str(_NODE), str(Path(sys.executable).parent), os.environ["PATH"]))
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    pytest.fail(f"{' or '.join(names)} is not installed; run scripts/setup")
