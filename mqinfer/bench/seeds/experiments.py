"""The experiments, the tables that they measure, and their run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from mqinfer.bench.seeds import jets, networks, on_gpu, pictures, transports
from mqinfer.bench.seeds.experiment import Bench, Experiment
from mqinfer.bench.seeds.noscope import headline, one_request, table_1
from mqinfer.bench.seeds.rows import Measured, NotMeasured
from mqinfer.logs import reason

EXPERIMENTS: Mapping[Experiment, Sequence[str]] = {
    transports.small_frames: ("000.F1", "000.S10"),
    pictures.encodings: ("000.F2", "000.S7a"),
    pictures.lossless: ("000.T1", "000.S12", "001.S17b"),
    transports.messages: ("000.S11", "001.S4"),
    networks.int8: ("000.S19a", "003.F1"),
    networks.fused_graphs: ("000.S19b", "003.F7"),
    pictures.segmentation_models: ("001.M", "001.T1"),
    pictures.share_of_postprocessing: ("001.C3",),
    on_gpu.gpu_against_cpu: ("001.C2",),
    transports.large_frames: ("001.C1", "001.C4"),
    transports.tensorflow_serving: ("001.T2",),
    transports.vehicles: ("001.C5",),
    transports.thin_link: ("001.S18a",),
    networks.formats: ("001.S17a",),
    jets.parameters: ("002.T1", "002.T2"),
    jets.latency_by_batch: ("002.F1", "002.F2"),
    on_gpu.latency: ("002.F4", "002.F5"),
    on_gpu.memory_operations: ("002.T5", "002.T6", "002.F7", "002.F8", "002.F9"),
    on_gpu.single_runs: ("002.T7",),
    on_gpu.card: ("002.T8",),
    jets.memory_of_the_call: ("002.T3", "002.T4"),
    jets.memory_by_events: ("002.F3",),
    jets.scores: ("002.F15", "002.F16", "002.F17"),
    jets.losses: ("002.F18",),
    networks.streams: ("003.F2", "003.F3", "003.F4", "003.F5"),
    networks.keras_against_engines: ("003.S3",),
    one_request.one_request: ("004.S1", "004.F1"),
    table_1.table_1: ("004.T1",),
    headline.figure_4: ("004.F4", "004.D"),
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
