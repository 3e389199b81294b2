"""Document 002: the autoencoders of the High Level Trigger: parameters, latency by batch size, memory, and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

import numpy as np

from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.formulas import event_bytes
from mqinfer.bench.seeds.rows import Measured, of_rounds
from mqinfer.lab.model_process import in_process, run_rows
from mqinfer.lab.profiling.arrays import call_memory
from mqinfer.lab.profiling.child import Plan
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.profiling.profiling import profile
from mqinfer.lab.profiling.results import BatchPoint, Profile, ratio
from mqinfer.lab.profiling.verdicts import EVENT_JETS
from mqinfer.lab.scores import roc
from mqinfer.lab.zoo.building import read_losses
from mqinfer.lab.zoo.jet_plots import SCORES
from mqinfer.lab.zoo.networks.conv_vae import conv_vae
from mqinfer.lab.zoo.networks.jets import adjacency, draw_both
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError

BATCHES = (1, 2, 4, 8, EVENT_JETS, 16, 32, 64)
"""Batch sizes of the document, and the 9 jets of one event."""
SETTING = "one caller, arrays in memory, the threads that a worker takes"
_ENGINES: Mapping[str, str] = {"tensorflow": "TensorFlow", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
_NETWORKS: Mapping[str, str] = {"002.F1": "conv_vae", "002.F2": "graph_vae"}
_LATENT = (8, 12, 6)
_HALVES: Mapping[str, str] = {"002.T1": "encoder", "002.T2": "decoder"}
_LAYERS: Mapping[str, Sequence[str]] = {
    "002.T1": ("conv2d", "conv1d", "conv1d_1", "average_pooling1d", "flatten", "dense 136", "dense 32", "z"),
    "002.T2": (
        "dense 32",
        "dense 136",
        "dense 1128",
        "reshape, upsampling",
        "conv1d_transpose",
        "conv1d_transpose_1",
        "conv2d_transpose",
    ),
}
"""Rows of the published summaries, in the order of the network's layers."""
_UNLISTED = ("InputLayer", "Reshape")
_MB = 1e6
_MEMORY: Mapping[str, tuple[str, int, int]] = {
    "002.T3": ("conv_vae", 15_000, 150_000),
    "002.T4": ("graph_vae", 4_000, 80_000),
}
"""Network, events by default, events of the document."""
_ROWS = 1024
_SUFFIXES: Mapping[str, str] = {"TensorFlow": "", "ONNX Runtime": "_onnx"}
"""Engine by the suffix of the network's name in its format."""
_SCORED: Mapping[str, tuple[str, str | None]] = {
    "TensorFlow": ("conv_vae", None),
    "ONNX Runtime": ("conv_vae_onnx", None),
    "OpenVINO": ("conv_vae_onnx", "openvino"),
}


def parameters(_: Bench) -> Iterator[Measured]:
    """Count the parameters of the built Conv-VAE by layer, and of those with 12 and 6 latent variables."""
    for latent in _LATENT:
        network = conv_vae(latent)
        for table, half in _HALVES.items():
            layers = [each for each in getattr(network, half).layers if _is_listed(each)]
            counts = [layer.count_params() for layer in layers]
            name = "total" if latent == _LATENT[0] else f"total, latent {latent}"
            yield of_rounds(table, name, [sum(counts)])
            if latent == _LATENT[0]:
                yield from (of_rounds(table, *row) for row in zip(_LAYERS[table], [[n] for n in counts], strict=True))


def _is_listed(layer: Any) -> bool:
    return type(layer).__name__ not in _UNLISTED and layer.name != "z_log_var"


def latency_by_batch(bench: Bench) -> Iterator[Measured]:
    """Measure a call of each autoencoder in memory by batch size and engine."""
    for table, name in _NETWORKS.items():
        plan = Plan(BATCHES, rounds=bench.count(3, 9), seconds=bench.count(1, 4) / 10)
        backends = ",".join(_ENGINES)
        found = profile(bench.model(name), plan, backends=backends, inputs=RandomInputs(), progress=bench.progress)
        profiles = {_ENGINES[each.name]: each for each in found.profiles}
        for engine, each in profiles.items():
            yield from (by_batch(table, engine, point) for point in each.points if point.turns)
        yield from _judged(table, profiles["TensorFlow"], profiles["ONNX Runtime"])


def by_batch(table: str, engine: str, point: BatchPoint) -> Measured:
    """Return the row of an engine at a batch size."""
    cpu = median(turn.cpu_ms for turn in point.turns)
    comment = f"p99 {point.p99_ms:.3g} ms, processor {cpu:.3g} ms, {1e3 * point.p50_ms / point.batch:.3g} us a jet"
    times = [turn.p50_ms for turn in point.turns]
    row = f"{engine} batch {point.batch}"
    runs = sum(len(turn.latencies_ns) for turn in point.turns)
    return of_rounds(table, row, times, runs, comment=comment, setting=SETTING, unit="ms")


def _judged(table: str, base: Profile, fast: Profile) -> Iterator[Measured]:
    """Yield what the document claims of ONNX Runtime against TensorFlow, and of one event."""
    gains = {batch: ratio(fast, base, batch) for batch in (BATCHES[0], BATCHES[-1])}
    least, most = gains.values()
    for batch, gain in gains.items():
        if gain:
            yield of_rounds(table, f"gain of ONNX Runtime, batch {batch}", [gain], setting=SETTING)
    if least and most:
        yield of_rounds(table, "gain of ONNX Runtime, batch 1 against 64", [least / most])
    if event := fast.at(EVENT_JETS):
        yield replace(
            by_batch(table, "", event), row="one event of 9 jets", comment=f"{1e3 / event.p50_ms:.0f} events/s"
        )


def memory_of_the_call(bench: Bench) -> Iterator[Measured]:
    """Measure what a call with one array of all events adds to a process, in batches of 1024, outputs kept."""
    for table, (name, usual, whole) in _MEMORY.items():
        events, is_graph, added = bench.count(usual, whole), name == "graph_vae", {}
        for engine, suffix in _SUFFIXES.items():
            bench.progress(f"  {name}, {engine}, {events:,} events")
            found = in_process(call_memory, bench.model(name + suffix), None, events, _ROWS)
            added[engine] = found.call_bytes / _MB
            comment = f"the process had {found.before_bytes / _MB:.0f} MB before it; by VmHWM, not memray"
            row = engine if bench.full else f"{engine}, {events:,} events"
            yield of_rounds(table, row, [added[engine]], events, comment=comment, unit="MB")
            without = added[engine] - event_bytes(events, graph=is_graph) / _MB
            yield of_rounds(table, f"{row}, without the input", [without], events, unit="MB")
        share = added["ONNX Runtime"] / added["TensorFlow"]
        yield of_rounds(table, "ONNX Runtime against TensorFlow", [share], events)
        yield of_rounds(table, "input", [event_bytes(whole, graph=is_graph) / _MB], whole, comment="by the formula")


def memory_by_events(bench: Bench) -> Iterator[Measured]:
    """Measure the graph network's memory by the number of events, in batches of 64: held whole, and batch by batch."""
    model = bench.model("graph_vae_onnx")
    for events in (1000, 2000, 5000, 10_000, 20_000) if bench.full else (1000, 2000, 5000):
        for way in ("held whole", "batch by batch"):
            found = in_process(call_memory, model, None, events, 64, drawn_whole=way == "held whole")
            each = found.call_bytes / events
            comment = f"{each / 1e3:.3g} kB an event; the whole process had {found.peak_bytes / _MB:.0f} MB"
            yield of_rounds("002.F3", f"{events:,} events, {way}", [found.call_bytes / _MB], events, comment=comment)


def scores(bench: Bench) -> Iterator[Measured]:
    """Score jets of one core and of two in each engine: the area under the ROC curve, and the largest difference."""
    count = bench.count(2_000, 10_000)
    jets = draw_both(count)
    first: Mapping[str, Array] = {}
    for engine, (name, backend) in _SCORED.items():
        found = in_process(run_rows, bench.model(name), backend, {"jets": jets}, SCORES)
        first = first or found
        area = _area(found["chamfer"], count)
        yield of_rounds("002.F17", f"AUC of the Conv-VAE, {engine}", [area], 2 * count, comment="Chamfer distance")
        if engine == "TensorFlow":
            yield from _separation("002.F15", found, count)
        else:
            apart = max(float(np.max(np.abs(np.divide(found[score], first[score]) - 1))) for score in SCORES)
            yield of_rounds("002.F17", f"largest relative difference of a score, {engine}", [100 * apart], 2 * count)
    if "002.F16" in bench.tables:
        some = np.concatenate([jets[:500], jets[count : count + 500]])
        arrays = {"features": some, "adjacency": adjacency(some)}
        yield from _separation("002.F16", in_process(run_rows, bench.model("graph_vae"), None, arrays, SCORES), 500)


def _area(found: Array, count: int) -> float:
    return roc(found[count:], found[:count]).area


def _separation(table: str, found: Mapping[str, Array], count: int) -> Iterator[Measured]:
    for score in SCORES:
        comment = "jets with two cores against one; trained for seconds"
        yield of_rounds(table, f"separation by {score}: AUC", [_area(found[score], count)], 2 * count, comment=comment)


def losses(bench: Bench) -> Iterator[Measured]:
    """Read the losses that the build of the Conv-VAE logged, with 12, 6 and 8 latent variables."""
    for latent in (12, 6, 8):
        model = bench.model("conv_vae" if latent == 8 else f"conv_vae_{latent}")
        if not (steps := read_losses(model.folder.parent)):
            raise ConfigError(f"{model.folder.parent}: its build kept no losses; remove it, and it is built again")
        ends = [mean(part) for part in (steps[-10:], steps[:10])]
        comment = f"{len(steps)} steps of 128 jets, not epochs"
        yield of_rounds("002.F18", f"loss at the end, latent {latent}", [ends[0]], len(steps), comment=comment)
        yield of_rounds("002.F18", f"loss at the end against the first, latent {latent}", [ends[0] / ends[1]])
