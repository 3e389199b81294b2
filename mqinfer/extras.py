"""Packages of extras: imported where they are needed, or an error that names the extra."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mqinfer.protocol.errors import MissingExtra

__all__ = ["check_packages", "import_extra"]


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


def import_extra(module: str, extra: str, package: str = "") -> Any:
    """Import a module of a package that an extra brings.

    Args:
        module: Its name.
        extra: Name of mqinfer's extra that lists the package.
        package: Name of the distribution; that of the module's first part if empty.

    Raises:
        MissingExtra: It can't be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra.of(package or module.partition(".")[0], extra) from error
