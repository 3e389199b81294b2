"""Colours for classes that have none of their own."""

from __future__ import annotations

__all__ = ["class_colour"]


def class_colour(number: int) -> tuple[int, int, int]:
    """Give the colour of a class: the colour map of the Pascal VOC challenge, 256 different ones, 0 being black.

    Bit 3n of the number becomes bit 7-n of red, bit 3n+1 of green, bit 3n+2 of blue
    (`VOClabelcolormap` of its development kit, http://host.robots.ox.ac.uk/pascal/VOC/).
    """
    red, green, blue = (sum((number >> 3 * bit + channel & 1) << 7 - bit for bit in range(8)) for channel in range(3))
    return red, green, blue
