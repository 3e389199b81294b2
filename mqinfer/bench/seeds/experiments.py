"""The experiments, the tables that they measure, and their run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from mqinfer.bench.seeds.experiment import Bench, Experiment
from mqinfer.bench.seeds.jets import (
    latency_by_batch,
    losses,
    memory_by_events,
    memory_of_the_call,
    parameters,
    scores,
)
from mqinfer.bench.seeds.networks import formats, fused_graphs, int8, keras_against_engines, streams
from mqinfer.bench.seeds.noscope.headline import figure_4
from mqinfer.bench.seeds.noscope.one_request import one_request
from mqinfer.bench.seeds.noscope.table_1 import table_1
from mqinfer.bench.seeds.on_gpu import card, gpu_against_cpu, latency, memory_operations, single_runs
from mqinfer.bench.seeds.pictures import encodings, lossless, segmentation_models, share_of_postprocessing
from mqinfer.bench.seeds.rows import Measured, NotMeasured
from mqinfer.bench.seeds.transports import (
    large_frames,
    messages,
    small_frames,
    tensorflow_serving,
    thin_link,
    vehicles,
)
from mqinfer.logs import reason

EXPERIMENTS: Mapping[Experiment, Sequence[str]] = {
    small_frames: ("000.F1", "000.S10"),
    encodings: ("000.F2", "000.S7a"),
    lossless: ("000.T1", "000.S12", "001.S17b"),
    messages: ("000.S11", "001.S4"),
    int8: ("000.S19a", "003.F1"),
    fused_graphs: ("000.S19b", "003.F7"),
    segmentation_models: ("001.M", "001.T1"),
    share_of_postprocessing: ("001.C3",),
    gpu_against_cpu: ("001.C2",),
    large_frames: ("001.C1", "001.C4"),
    tensorflow_serving: ("001.T2",),
    vehicles: ("001.C5",),
    thin_link: ("001.S18a",),
    formats: ("001.S17a",),
    parameters: ("002.T1", "002.T2"),
    latency_by_batch: ("002.F1", "002.F2"),
    latency: ("002.F4", "002.F5"),
    memory_operations: ("002.T5", "002.T6", "002.F7", "002.F8", "002.F9"),
    single_runs: ("002.T7",),
    card: ("002.T8",),
    memory_of_the_call: ("002.T3", "002.T4"),
    memory_by_events: ("002.F3",),
    scores: ("002.F15", "002.F16", "002.F17"),
    losses: ("002.F18",),
    streams: ("003.F2", "003.F3", "003.F4", "003.F5"),
    keras_against_engines: ("003.S3",),
    one_request: ("004.S1", "004.F1"),
    table_1: ("004.T1",),
    figure_4: ("004.F4", "004.D"),
}
"""The tables whose rows each experiment yields, in the order of running."""


def run_experiments(bench: Bench, found: list[Measured], reasons: dict[str, str]) -> None:
    """Run the experiments of the tables that are asked for, one after the other.

    Args:
        bench: What each gets.
        found: The rows are added here one by one, so that an interrupted run keeps them.
        reasons: By table, or table and row, why there is no figure, is added here.
    """
    wanted = {
        experiment: own
        for experiment, tables in EXPERIMENTS.items()
        if (own := [each for each in tables if each in bench.tables])
    }
    reasons |= {table: "interrupted before it was measured" for own in wanted.values() for table in own}
    for experiment, own in wanted.items():
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
