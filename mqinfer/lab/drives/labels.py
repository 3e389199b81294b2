"""Classes of the ground truth: numbers, names, and the colours of Cityscapes where it has the class."""

from __future__ import annotations

from enum import IntEnum

from mqinfer.protocol.card import ClassInfo


class Label(IntEnum):
    """Number of each class in the mask."""

    SKY = 0
    ROAD = 1
    LANE_MARK = 2
    PAVEMENT = 3
    TERRAIN = 4
    BUILDING = 5
    VEGETATION = 6
    POLE = 7
    CAR = 8


CLASSES: tuple[ClassInfo, ...] = (
    ClassInfo("sky", (70, 130, 180)),
    ClassInfo("road", (128, 64, 128)),
    ClassInfo("lane mark", (255, 255, 255)),
    ClassInfo("pavement", (244, 35, 232)),
    ClassInfo("terrain", (152, 251, 152)),
    ClassInfo("building", (70, 70, 70)),
    ClassInfo("vegetation", (107, 142, 35)),
    ClassInfo("pole", (220, 220, 0)),
    ClassInfo("car", (0, 0, 142)),
)
