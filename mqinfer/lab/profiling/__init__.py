"""Measures latency, throughput and peak memory of models by batch size, in every engine that can run them."""

from mqinfer.lab.profiling.inputs import InputSource, RandomInputs
from mqinfer.lab.profiling.measure import Plan, Subject, measure
from mqinfer.lab.profiling.results import BatchPoint, Loaded, Profile, Turn, ratio

__all__ = [
    "BatchPoint",
    "InputSource",
    "Loaded",
    "Plan",
    "Profile",
    "RandomInputs",
    "Subject",
    "Turn",
    "measure",
    "ratio",
]
