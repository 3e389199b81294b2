"""Measures latency, throughput and peak memory of models by batch size, in every engine that can run them."""

from mqinfer.lab.profiling.child import Plan, Subject
from mqinfer.lab.profiling.measure import measure
from mqinfer.lab.profiling.results import ratio

__all__ = ["Plan", "Subject", "measure", "ratio"]
