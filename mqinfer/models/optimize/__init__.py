"""Makes a model faster without making it another one: conversion, fusing, fewer bits, and proof of what was lost."""

from mqinfer.models.optimize.optimising import CANDIDATES, OptimizeOptions, optimize
from mqinfer.models.optimize.parity import Parity, Tolerance, parse_tolerance
from mqinfer.models.optimize.report import as_markdown, as_table, write_report
from mqinfer.models.optimize.results import Candidate, Optimisation, Speed
from mqinfer.models.optimize.samples import Sample

__all__ = [
    "CANDIDATES",
    "Candidate",
    "Optimisation",
    "OptimizeOptions",
    "Parity",
    "Sample",
    "Speed",
    "Tolerance",
    "as_markdown",
    "as_table",
    "optimize",
    "parse_tolerance",
    "write_report",
]
