"""Document 002: the autoencoders of the High Level Trigger, their parameters and their latency by batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.rows import Measured, of_rounds
from mqinfer.lab.profiling.child import Plan
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.profiling.profiling import profile
from mqinfer.lab.profiling.results import BatchPoint, Profile, ratio
from mqinfer.lab.profiling.verdicts import EVENT_JETS
from mqinfer.lab.zoo.networks.conv_vae import conv_vae

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
