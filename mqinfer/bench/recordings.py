"""The frames of a recording that a bench measures with, and the contract of the model that gets them."""

from __future__ import annotations

from contextlib import closing

from mqinfer.bags.frame import Frame
from mqinfer.bags.sources import open_source
from mqinfer.protocol.card import ColourOrder, ImageContract, ModelCard
from mqinfer.protocol.errors import ConfigError, SourceError


def first_frames(recording: str, count: int, topic: str | None = None) -> tuple[list[Frame], float]:
    """Return the first frames of one stream, and how many of them come in a second.

    Args:
        recording: Bag, video or folder of pictures.
        count: How many at most.
        topic: Image topic; None for the first.

    Raises:
        SourceError: It can't be read, or has no frames.
    """
    with closing(open_source(recording, topics=[topic] if topic else [], depth=False)) as source:
        found: list[Frame] = []
        for frame in source.frames():
            if not found or frame.source == found[0].source:
                found.append(frame)
            if len(found) == count:
                break
    if not found:
        raise SourceError(f"{recording}: no frames to measure")
    span = (found[-1].log_time_ns - found[0].log_time_ns) / 1e9
    return found, (len(found) - 1) / span if span > 0 else 10.0


def colour_contract(card: ModelCard) -> ImageContract:
    """Return how a model takes pictures.

    Raises:
        ConfigError: It takes none in colours.
    """
    if card.image is None or card.image.colour is ColourOrder.DEPTH:
        raise ConfigError(f"model {card.name!r} takes no colour pictures; this bench compares those")
    return card.image
