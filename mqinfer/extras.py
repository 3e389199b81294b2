"""Packages of extras: imported where they are needed, or an error with the command that installs them here."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from mqinfer.protocol.errors import MissingExtra

_TREE = Path(__file__).parents[1]
"""What the package lies in: a clone that is imported as it is, or a folder of installed packages."""


class _Origin(msgspec.Struct):
    """What `direct_url.json` of an installed package states (PEP 610); nothing where an index was asked.

    Attributes:
        url: The folder or the wheel that was installed, or the repository.
        vcs_info: What a repository was read with; its `vcs` is `git`.
    """

    url: str
    vcs_info: dict[str, str] = {}

    def path(self) -> Path | None:
        """Return the folder or file on this machine, None for one elsewhere."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None


_DECODER = msgspec.json.Decoder(_Origin)


def check_packages(packages: Mapping[str, str], extra: str) -> None:
    """Check that the packages of an extra are installed, without importing them.

    Args:
        packages: Name of the distribution by the module that is imported.
        extra: Name of mqinfer's extra that lists them.

    Raises:
        MissingExtra: One is not.
    """
    for module, package in packages.items():
        if not is_installed(module):
            raise missing_extra(package, extra)


def is_installed(module: str) -> bool:
    """Return whether there is a module, without importing it; also while another thread imports it."""
    try:
        return find_spec(module) is not None
    except ImportError:  # of the package that it is in
        return False
    except ValueError:  # it is there and has no spec yet: OpenCV, while it is imported
        return True


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
        raise missing_extra(package or module.partition(".")[0], extra) from error


def missing_extra(package: str, extra: str) -> MissingExtra:
    """Return the error for a package that is missing, or can't be imported for what is handled now, with the command.

    Args:
        package: Name of the distribution that can't be imported.
        extra: Name of mqinfer's extra that lists it.
    """
    error, how = sys.exception(), f"run: {install_command(extra)}"
    if isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError):
        return MissingExtra(f"{package} can't be imported: {error}; mend what that names, or {how}")
    return MissingExtra(f"{package} is not installed; {how}")


def install_command(extra: str = "") -> str:
    """Return the command that installs an extra into this environment, from where mqinfer came from, in any folder.

    That is the clone that runs or was installed, the wheel, the repository, or else the index.

    Args:
        extra: Name of the extra; mqinfer is installed anew where it is empty.
    """
    extras = f"[{extra}]" if extra else ""
    if _is_clone(_TREE):
        return f"{_pip()} install -e {shlex.quote(f'{_TREE}{extras}')}"
    origin = _origin()
    if origin is None:
        return f"{_pip()} install {shlex.quote(f'mqinfer{extras}')}"
    path, kind = origin.path(), origin.vcs_info.get("vcs", "")
    if path is not None and not path.exists():
        return f"{_pip()} install {shlex.quote(f'.{extras}')} in a clone of mqinfer"
    place = f"{path}{extras}" if path else f"mqinfer{extras} @ {kind and f'{kind}+'}{origin.url}"
    return f"{_pip()} install {shlex.quote(place)}"


def clone() -> Path | None:
    """Return the clone that runs or was installed, if it is on this machine."""
    origin = None if _is_clone(_TREE) else _origin()
    path = origin.path() if origin else _TREE
    return path if path and _is_clone(path) else None


def _is_clone(path: Path) -> bool:
    return (path / "pyproject.toml").is_file() and (path / "mqinfer").is_dir()


def _origin() -> _Origin | None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution("mqinfer").read_text("direct_url.json")
        return _DECODER.decode(text) if text else None
    except (PackageNotFoundError, msgspec.MsgspecError, ValueError):
        return None


def _pip() -> str:
    """Return `pip` where that installs into this environment, else this Python's own."""
    found, python = shutil.which("pip"), Path(sys.executable)
    if found and Path(found).parent == python.parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"
