"""What scripts/release needs: one version, and what an upgrade takes for each."""

from __future__ import annotations

import json
import re

import pytest

from mqinfer._version import __version__
from tests.docs.blocks import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", CHANGELOG, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("package", ["clients/js", "dashboard"])
def test_the_javascript_packages_have_the_version(package: str) -> None:
    """That of the command."""
    assert json.loads((ROOT / package / "package.json").read_text("utf-8"))["version"] == __version__


def test_each_version_states_what_an_upgrade_takes() -> None:
    """The one that is being made, too."""
    assert __version__ in SECTIONS
    texts = {name: text.strip() for name, text in SECTIONS.items()}
    assert [name for name, text in texts.items() if text and not text.startswith("### Upgrading\n")] == []
