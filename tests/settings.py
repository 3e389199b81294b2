"""Settings of a run, by the names of their fields alone, whichever group each is in."""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mqinfer.client.requester import Requester
from mqinfer.edge_agent.reporting.report import SessionReport
from mqinfer.edge_agent.session import run_sessions
from mqinfer.edge_agent.settings import (
    OutputSettings,
    PreparingSettings,
    ReplayOptions,
    ReplaySettings,
    SourceSettings,
    SpoolSettings,
)

__all__ = ["changed", "run_session", "settings_of"]

_GROUPS = {
    "source": SourceSettings,
    "options": ReplayOptions,
    "preparing": PreparingSettings,
    "outputs": OutputSettings,
}
_GROUP_OF = {each.name: name for name, group in _GROUPS.items() for each in fields(group)}


def settings_of(source: Path | str, options: ReplayOptions, **given: Any) -> ReplaySettings:
    """Return the settings of a run; further ones as of `changed`."""
    return changed(ReplaySettings(SourceSettings([str(source)]), options), **given)


def changed(settings: ReplaySettings, **given: Any) -> ReplaySettings:
    """Return settings with some replaced: groups, fields of groups, or the spool by its folder."""
    for name, value in given.items():
        group = _GROUP_OF.get(name)
        if isinstance(value, Path) and name == "spool":
            settings = replace(settings, spool=SpoolSettings(value))
        elif group is None:
            settings = replace(settings, **{name: value})
        else:
            settings = replace(settings, **{group: replace(getattr(settings, group), **{name: value})})
    return settings


def run_session(
    settings: ReplaySettings, requester: Requester, broker: str = "memory", stop: threading.Event | None = None
) -> SessionReport:
    """Replay a source against one model, quietly."""
    models, console = [settings.options.model], Console(quiet=True)
    stop = stop or threading.Event()
    return run_sessions(settings, models, requester, broker=broker, stop=stop, console=console)[0]
