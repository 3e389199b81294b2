"""The experiments by the table that they measure, and their run."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from mqinfer.bench.seeds.experiment import Bench, Experiment
from mqinfer.bench.seeds.jet_scores import losses, memory_by_events, memory_of_the_call, scores
from mqinfer.bench.seeds.jets import latency_by_batch, parameters
from mqinfer.bench.seeds.messages import messages
from mqinfer.bench.seeds.networks import formats, fused_graphs, int8, keras_against_engines, streams
from mqinfer.bench.seeds.noscope.headline import figure_4
from mqinfer.bench.seeds.noscope.one_request import one_request
from mqinfer.bench.seeds.noscope.table_1 import table_1
from mqinfer.bench.seeds.on_gpu import card, gpu_against_cpu, latency, memory_operations, single_runs
from mqinfer.bench.seeds.pictures import encodings, lossless, segmentation_models, share_of_postprocessing
from mqinfer.bench.seeds.rows import Measured, NotMeasured
from mqinfer.bench.seeds.transports import large_frames, small_frames, tensorflow_serving, thin_link, vehicles
from mqinfer.logs import reason

EXPERIMENTS: Mapping[str, Experiment] = {
    "000.F1": small_frames,
    "000.S10": small_frames,
    "000.F2": encodings,
    "000.S7a": encodings,
    "000.T1": lossless,
    "000.S11": messages,
    "000.S12": lossless,
    "000.S19a": int8,
    "000.S19b": fused_graphs,
    "001.M": segmentation_models,
    "001.T1": segmentation_models,
    "001.C3": share_of_postprocessing,
    "001.C2": gpu_against_cpu,
    "001.C1": large_frames,
    "001.C4": large_frames,
    "001.T2": tensorflow_serving,
    "001.C5": vehicles,
    "001.S18a": thin_link,
    "001.S4": messages,
    "001.S17a": formats,
    "001.S17b": lossless,
    "002.T1": parameters,
    "002.T2": parameters,
    "002.F1": latency_by_batch,
    "002.F2": latency_by_batch,
    "002.F4": latency,
    "002.F5": latency,
    "002.T5": memory_operations,
    "002.T6": memory_operations,
    "002.F7": memory_operations,
    "002.F8": memory_operations,
    "002.F9": memory_operations,
    "002.T7": single_runs,
    "002.T8": card,
    "002.T3": memory_of_the_call,
    "002.T4": memory_of_the_call,
    "002.F3": memory_by_events,
    "002.F15": scores,
    "002.F16": scores,
    "002.F17": scores,
    "002.F18": losses,
    "003.F1": int8,
    "003.F2": streams,
    "003.F3": streams,
    "003.F4": streams,
    "003.F5": streams,
    "003.F7": fused_graphs,
    "003.S3": keras_against_engines,
    "004.S1": one_request,
    "004.F1": one_request,
    "004.T1": table_1,
    "004.F4": figure_4,
    "004.D": figure_4,
}
"""Experiment of each table; one that stands for several runs once and yields the rows of all."""
_INTERRUPTED = "interrupted before it was measured"


def run_experiments(bench: Bench, found: list[Measured], reasons: dict[str, str]) -> None:
    """Run the experiments of the tables that are asked for, one after the other.

    Args:
        bench: What each gets.
        found: The rows are added here one by one, so that an interrupted run keeps them.
        reasons: By table, or table and row, why there is no figure, is added here.
    """
    tables: dict[Experiment, list[str]] = {}
    for table, experiment in EXPERIMENTS.items():
        if table in bench.tables:
            tables.setdefault(experiment, []).append(table)
    reasons |= {table: _INTERRUPTED for own in tables.values() for table in own}
    for experiment, own in tables.items():
        bench.progress(f"{', '.join(own)} …")
        began = perf_counter()
        try:
            for each in experiment(bench):
                if isinstance(each, NotMeasured):
                    reasons[f"{each.table} {each.row}"] = each.reason
                elif each.table in bench.tables:
                    found.append(each)
        except Exception as error:  # noqa: BLE001 - whatever an engine raises, the others still run
            bench.progress(f"  not measured: {reason(error)}")
            reasons |= dict.fromkeys(own, reason(error))
        else:
            reasons |= dict.fromkeys(own, "")
        bench.progress(f"  {', '.join(own)} took {perf_counter() - began:.0f} s")
