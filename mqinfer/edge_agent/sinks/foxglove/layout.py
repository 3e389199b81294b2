"""Lay out panels for a results file; Foxglove and Lichtblick open the layout (Layouts, Import from file)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

LAYOUT_FILE = "foxglove-layout.json"
"""Name of the layout beside `results.mcap`."""
_PLAIN_TOPIC = re.compile(r"[A-Za-z0-9_/-]+")
Panels = str | dict[str, Any]


def result_topic(source: str, kind: str) -> str:
    """Return the topic of one kind of messages of a stream."""
    return f"{source.rstrip('/')}/mqinfer/{kind}"


def make_layout(streams: Mapping[str, bool]) -> dict[str, Any]:
    """Return a layout: the picture of each stream with its annotations, a plot of the latency, the first results.

    Args:
        streams: Their sources, and whether they have masks; the overlay of these stands beside the picture.
    """
    configs: dict[str, Any] = {
        f"Image!{kind}{number}": _image_panel(source, kind)
        for number, (source, has_masks) in enumerate(streams.items(), 1)
        for kind in (("image", "overlay") if has_masks else ("image",))
    }
    rows = _grid(list(configs), pairs=any(streams.values()))
    configs["Plot!latency"] = _latency_plot(list(streams))
    configs["RawMessages!result"] = {"topicPath": _path(next(iter(streams)))}
    below = _split("row", ["Plot!latency", "RawMessages!result"])
    return {
        "configById": configs,
        "globalVariables": {},
        "userNodes": {},
        "playbackConfig": {"speed": 1},
        "layout": {"direction": "column", "first": _split("column", rows), "second": below, "splitPercentage": 70},
    }


def _image_panel(source: str, kind: str) -> dict[str, Any]:
    """Show one topic under the boxes and texts of the same stamp."""
    title = f"{source} {kind}"
    annotations = {result_topic(source, "annotations"): {"visible": True}}
    mode = {"imageTopic": result_topic(source, kind), "annotations": annotations, "synchronize": True}
    return {"imageMode": mode, "foxglovePanelTitle": title, "lichtblickPanelTitle": title}


def _latency_plot(sources: Sequence[str]) -> dict[str, Any]:
    series = [
        {"value": f"{_path(source)}.latency_ms", "label": source, "enabled": True, "timestampMethod": "receiveTime"}
        for source in sources
    ]
    title = "Latency in ms"
    return {
        "paths": series,
        "xAxisVal": "timestamp",
        "showLegend": True,
        "legendDisplay": "floating",
        "showPlotValuesInLegend": True,
        "showXAxisLabels": True,
        "showYAxisLabels": True,
        "isSynced": True,
        "sidebarDimension": 240,
        "foxglovePanelTitle": title,
        "lichtblickPanelTitle": title,
    }


def _path(source: str) -> str:
    """Return the message path of a stream's results; a topic with other characters than usual stands in quotes."""
    topic = result_topic(source, "result")
    if _PLAIN_TOPIC.fullmatch(topic):
        return topic
    quoted = re.sub(r'(["\\])', r"\\\1", topic)
    return f'"{quoted}"'


def _grid(panels: Sequence[str], *, pairs: bool) -> list[Panels]:
    """Put panels into about as many rows as columns; with pairs into an even number of columns."""
    columns = math.ceil(math.sqrt(len(panels)))
    columns += columns % 2 if pairs else 0
    return [_split("row", panels[first : first + columns]) for first in range(0, len(panels), columns)]


def _split(direction: str, panels: Sequence[Panels]) -> Panels:
    """Put panels side by side (`row`) or one below the other (`column`), all of one size."""
    first, *others = panels
    if not others:
        return first
    share = 100 / len(panels)
    return {"direction": direction, "first": first, "second": _split(direction, others), "splitPercentage": share}
