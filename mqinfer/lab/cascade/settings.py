"""Puts calibrated thresholds into a cascade's settings."""

from __future__ import annotations

from dataclasses import replace

from mqinfer.judging.settings import CascadeSettings, DifferenceDetector
from mqinfer.lab.cascade.simulation import Thresholds
from mqinfer.protocol.errors import ConfigError


def check_blocks(blocks: int) -> None:
    """Check a number of blocks before long work is done for it.

    Raises:
        ConfigError: The picture can't be divided so.
    """
    try:
        DifferenceDetector(1.0, blocks=blocks)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def with_thresholds(settings: CascadeSettings, chosen: Thresholds, blocks: int = 1) -> CascadeSettings:
    """Return a cascade with these thresholds; a stage that they leave without work is left out."""
    difference = DifferenceDetector(chosen.t_diff, blocks=blocks) if chosen.t_diff > 0 else None
    small = settings.small
    if small is not None:
        is_used = chosen.c_low > 0 or chosen.c_high <= 1
        small = replace(small, c_low=chosen.c_low, c_high=min(chosen.c_high, 1.0)) if is_used else None
    return replace(settings, difference=difference, small=small)
