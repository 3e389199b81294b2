"""Class names and colours of the data sets that the networks are trained on: Cityscapes and COCO."""

from __future__ import annotations

import json
from collections.abc import Iterable

from mqinfer.models.repository.config_keys import class_colour
from mqinfer.protocol.card import ClassInfo

CITYSCAPES = tuple(
    ClassInfo(name, colour)
    for name, colour in (
        ("road", (128, 64, 128)),
        ("sidewalk", (244, 35, 232)),
        ("building", (70, 70, 70)),
        ("wall", (102, 102, 156)),
        ("fence", (190, 153, 153)),
        ("pole", (153, 153, 153)),
        ("traffic light", (250, 170, 30)),
        ("traffic sign", (220, 220, 0)),
        ("vegetation", (107, 142, 35)),
        ("terrain", (152, 251, 152)),
        ("sky", (70, 130, 180)),
        ("person", (220, 20, 60)),
        ("rider", (255, 0, 0)),
        ("car", (0, 0, 142)),
        ("truck", (0, 0, 70)),
        ("bus", (0, 60, 100)),
        ("train", (0, 80, 100)),
        ("motorcycle", (0, 0, 230)),
        ("bicycle", (119, 11, 32)),
    )
)
"""The 19 training classes of Cityscapes, in the order of their train ids, with the data set's own colours."""

_COCO_NAMES = (
    "person bicycle car motorcycle aeroplane bus train truck boat traffic_light fire_hydrant stop_sign parking_meter "
    "bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella handbag tie suitcase frisbee "
    "skis snowboard sports_ball kite baseball_bat baseball_glove skateboard surfboard tennis_racket bottle wine_glass "
    "cup fork knife spoon bowl banana apple sandwich orange broccoli carrot hot_dog pizza donut cake chair couch "
    "potted_plant bed dining_table toilet tv laptop mouse remote keyboard mobile_phone microwave oven toaster sink "
    "refrigerator book clock vase scissors teddy_bear hair_drier toothbrush"
)

COCO = tuple(
    ClassInfo(name.replace("_", " "), class_colour(number)) for number, name in enumerate(_COCO_NAMES.split(), start=1)
)
"""The 80 classes of COCO (https://cocodataset.org) in detector order, with the colours of Pascal VOC, without black."""


def class_tables(classes: Iterable[ClassInfo]) -> str:
    """Return classes as the end of a `model.toml`."""
    named = ((json.dumps(each.name), list(each.colour)) for each in classes)
    return "".join(f"\n[[classes]]\nname = {name}\ncolour = {colour}\n" for name, colour in named)
