"""The C# client under Mono: golden and broken messages, checksums."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqinfer.protocol.checksum import checksum
from tests.clients.cpp import output
from tests.clients.csharp import built
from tests.golden.test_golden import FOLDER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
_LENGTHS = [*range(300), *range(1000, 1100), 2048, 2049, 4095, 65536, 100_001]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs."""
    return built(tmp_path_factory.mktemp("csharp"))


def test_golden_and_broken_messages(programs: Path) -> None:
    """Each golden message is read, and written again byte by byte; each broken one is refused with its code."""
    (said,) = output(programs / "tests", "golden", str(FOLDER))
    assert re.fullmatch(r"10 golden messages, 1[89]\d broken ones", said)


def test_checksums(programs: Path) -> None:
    """Those of Python, for each length at which XXH3 takes another way, wherever in an array the bytes lie."""
    found = output(programs / "tests", "checksums", *map(str, _LENGTHS))
    assert found == [checksum([bytes(place * 131 % 256 for place in range(length))])[1] for length in _LENGTHS]
