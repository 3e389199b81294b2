"""How many files, and so connections, a process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress

__all__ = ["allow_many_connections"]


def allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one: each caller's connection takes one, and 1024 are usual."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
