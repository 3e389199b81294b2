"""Whether the packages of an extra are installed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec

from mqinfer.protocol.errors import MissingExtra

__all__ = ["check_packages"]


def check_packages(packages: Mapping[str, str], extra: str) -> None:
    """Check that the packages of an extra are installed, without importing them.

    Args:
        packages: Name of the distribution by the module that is imported.
        extra: Name of mqinfer's extra that lists them.

    Raises:
        MissingExtra: One is not.
    """
    for module, package in packages.items():
        found = False
        with suppress(ImportError, ValueError):  # of the package that it is in; it is blocked
            found = find_spec(module) is not None
        if not found:
            raise MissingExtra.of(package, extra)
