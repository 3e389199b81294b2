"""What can be run of a part of the documents."""

from __future__ import annotations

import pytest

from tests.docs.blocks import part_of, run_document

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("document", part_of(3))
def test_commands_and_programs(document: str) -> None:
    """All that can be run of it, in one shell from top to bottom."""
    run_document(document)
