"""Value objects of the hot path: frozen for the type checker, plain at run time.

A frozen dataclass sets each field through `object.__setattr__`, which costs several times what an assignment does, and
one request passes through about thirty of them. mypy refuses every assignment all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value_object(*, eq: bool = True) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a class a dataclass with slots, whose fields are not assigned to again.

    Args:
        eq: Compare and hash objects by their fields; otherwise by identity.
    """
    return dataclass(slots=True, eq=eq, unsafe_hash=eq)
