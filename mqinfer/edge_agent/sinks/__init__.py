"""Sinks keep the results of a replay: one module for each kind."""

from mqinfer.edge_agent.sinks.drawing.overlay import draw_overlay
from mqinfer.edge_agent.sinks.drawing.picture_sink import PictureSink
from mqinfer.edge_agent.sinks.drawing.video_sink import VideoSink
from mqinfer.edge_agent.sinks.factory import SINK_KINDS, SinkSet, open_sinks
from mqinfer.edge_agent.sinks.foxglove.mcap_sink import McapSink
from mqinfer.edge_agent.sinks.jsonl_sink import JsonlSink
from mqinfer.edge_agent.sinks.sink import Sink

__all__ = [
    "SINK_KINDS",
    "JsonlSink",
    "McapSink",
    "PictureSink",
    "Sink",
    "SinkSet",
    "VideoSink",
    "draw_overlay",
    "open_sinks",
]
