"""The 80 classes of COCO (https://cocodataset.org), in the order in which detectors number them."""

from __future__ import annotations

from mqinfer.models.repository.config_keys import class_colour
from mqinfer.protocol.card import ClassInfo

__all__ = ["COCO"]

_NAMES = (
    "person bicycle car motorcycle aeroplane bus train truck boat traffic_light fire_hydrant stop_sign parking_meter "
    "bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella handbag tie suitcase frisbee "
    "skis snowboard sports_ball kite baseball_bat baseball_glove skateboard surfboard tennis_racket bottle wine_glass "
    "cup fork knife spoon bowl banana apple sandwich orange broccoli carrot hot_dog pizza donut cake chair couch "
    "potted_plant bed dining_table toilet tv laptop mouse remote keyboard mobile_phone microwave oven toaster sink "
    "refrigerator book clock vase scissors teddy_bear hair_drier toothbrush"
)

COCO = tuple(
    ClassInfo(name.replace("_", " "), class_colour(number)) for number, name in enumerate(_NAMES.split(), start=1)
)
"""Colours are those of the Pascal VOC challenge, without black."""
