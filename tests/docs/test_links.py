"""What documents and programs refer to: links, anchors and documents exist; the guide stays short enough to be read."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

MOST_WORDS_OF_THE_GUIDE = 12_000
_CODE = re.compile(r"```.*?```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_PATH = re.compile(r"(?<![\w/.-])docs/[\w./-]*\w")
_TEXTS = (".py", ".ts", ".tsx", ".js", ".toml", ".conf", ".service", ".yaml", ".yml", ".sh", ".json", ".md")


def tracked() -> list[Path]:
    """Return the files of the repository that have text which may name a document."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = (ROOT / name for name in listed.splitlines())
    return [path for path in paths if path.is_file() and (path.suffix in _TEXTS or path.parent.name == "scripts")]


FILES = tracked()
MARKDOWN = {str(path.relative_to(ROOT)): path for path in FILES if path.suffix == ".md"}


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in _HEADING.findall(_CODE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def broken(path: Path, text: str) -> list[str]:
    """Return the relative links of a document that lead nowhere."""
    missing = []
    for link in _LINK.findall(_CODE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        is_document = target.suffix == ".md" and target.exists()
        if not target.exists() or (anchor and is_document and anchor not in anchors(target.read_text("utf-8"))):
            missing.append(link)
    return missing


@pytest.mark.parametrize("document", MARKDOWN)
def test_each_link_leads_somewhere(document: str) -> None:
    """Relative ones, with their anchors."""
    assert broken(MARKDOWN[document], MARKDOWN[document].read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    """The check above can fail."""
    text = "# One\n[a](README.md#by-nobody) [b](nowhere.md) [c](#one) [d](https://example.org/x)"
    assert broken(ROOT / "CONTRIBUTING.md", text) == ["README.md#by-nobody", "nowhere.md", "#one"]


def test_each_document_that_is_named_exists() -> None:
    """Each `docs/…` in code, help, errors, tests and examples."""
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        if path != Path(__file__)
        for name in _PATH.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert missing == []


def test_the_guide_is_short() -> None:
    """All its chapters together."""
    words = sum(
        len(path.read_text("utf-8").split())
        for name, path in MARKDOWN.items()
        if name.startswith(("docs/guide/", "docs/tutorial"))
    )
    assert words <= MOST_WORDS_OF_THE_GUIDE
