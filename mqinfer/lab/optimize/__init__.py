"""Makes faster versions of a model by conversion, fusing and quantisation, and measures what they lose."""

from mqinfer.lab.optimize.optimising import CANDIDATES, OptimizeOptions, optimize
from mqinfer.lab.optimize.parity import Parity, Tolerance, parse_tolerance
from mqinfer.lab.optimize.report import as_markdown, as_table, write_report
from mqinfer.lab.optimize.results import Optimisation, Product, Speed
from mqinfer.lab.optimize.samples import Sample

__all__ = [
    "CANDIDATES",
    "Optimisation",
    "OptimizeOptions",
    "Parity",
    "Product",
    "Sample",
    "Speed",
    "Tolerance",
    "as_markdown",
    "as_table",
    "optimize",
    "parse_tolerance",
    "write_report",
]
