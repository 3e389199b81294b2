"""Measures latency, throughput and peak memory of models by batch size, in every engine that can run them."""

from mqinfer.lab.profiling.inputs import InputSource, RandomInputs
from mqinfer.lab.profiling.measure import Plan, Subject, measure
from mqinfer.lab.profiling.results import Loaded, Point, Profile, Turn, ratio

__all__ = [
    "InputSource",
    "Loaded",
    "Plan",
    "Point",
    "Profile",
    "RandomInputs",
    "Subject",
    "Turn",
    "measure",
    "ratio",
]
