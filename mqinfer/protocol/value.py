"""Value objects of the hot path: frozen for the type checker, plain at run time.

A frozen dataclass sets each field through `object.__setattr__`, which costs several times what an assignment does, and
one request passes through about thirty of them. mypy refuses every assignment all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

__all__ = ["value_object"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value_object(*, eq: bool = True) -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass with slots that nothing assigns to after its construction.

    Args:
        eq: Whether equal fields make equal objects, which can then be hashed; otherwise identity counts.
    """
    return dataclass(slots=True, eq=eq, unsafe_hash=eq)
