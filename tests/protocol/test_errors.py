"""Errors: each class has a wire code of its own and the outcome that it means."""

from __future__ import annotations

import pytest

from mqinfer.protocol import errors
from mqinfer.protocol.errors import MqinferError, error_from_code
from mqinfer.protocol.types import Outcome

CLASSES: list[type[MqinferError]] = [getattr(errors, name) for name in errors.__all__ if name != "error_from_code"]
OUTCOMES = {
    "expired": Outcome.EXPIRED,
    "rejected": Outcome.REJECTED,
    "corrupted": Outcome.REJECTED,
    "cancelled": Outcome.CANCELLED,
    "superseded": Outcome.SUPERSEDED,
}


@pytest.mark.parametrize("error", CLASSES)
def test_every_class_names_its_outcome(error: type[MqinferError]) -> None:
    """Five classes have an outcome of their own; every other failure is an `error`."""
    assert error.outcome is OUTCOMES.get(error.code, Outcome.ERROR)


@pytest.mark.parametrize("error", CLASSES)
def test_a_code_makes_its_class_again(error: type[MqinferError]) -> None:
    """Codes are unique, so a reply's error becomes the class that was raised at the worker."""
    made = error_from_code(error.code, "why")
    assert type(made) is error
    assert str(made) == "why"


def test_an_unknown_code_makes_the_root_class() -> None:
    """A newer peer may have codes that this release does not know."""
    assert type(error_from_code("from_the_future", "why")) is MqinferError
