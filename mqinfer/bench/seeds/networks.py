"""Document 003, and 000 on networks: int8, streams, fused graphs, Keras against engines."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.rows import Measured, of_rounds
from mqinfer.extras import import_extra
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.lab.load import repeat
from mqinfer.lab.machine import describe_machine
from mqinfer.lab.optimize.optimising import OptimizeOptions, optimize
from mqinfer.lab.optimize.results import Product
from mqinfer.lab.optimize.samples import Sample
from mqinfer.lab.profiling.child import Plan, Subject
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.profiling.measure import measure
from mqinfer.lab.profiling.results import ratio
from mqinfer.lab.zoo.networks.classifiers import mobilenet, noscope
from mqinfer.lab.zoo.networks.conv_vae import conv_vae
from mqinfer.models.backends.onnx import import_onnxruntime
from mqinfer.models.engines import choose_loader
from mqinfer.models.load_options import LoadOptions, default_threads
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.types import Scalar

_INT8: Mapping[str, tuple[str, tuple[int, int]]] = {
    "mobilenet-v1": ("mobilenet_224_onnx", (224, 224)),
    "deeplabv3-TF": ("drive_segmentation_onnx", (968, 608)),
}
"""Network of the zoo that stands for one of OpenVINO's table, and the size of its frames."""
_STREAMS: Sequence[tuple[str, Mapping[str, Scalar], int, int]] = (
    ("LATENCY batch 1", {}, 1, 1),
    ("LATENCY batch 4", {}, 4, 1),
    ("LATENCY batch 8", {}, 8, 1),
    ("THROUGHPUT", {"PERFORMANCE_HINT": "THROUGHPUT"}, 1, 4),
    ("1 stream", {"NUM_STREAMS": "1"}, 1, 2),
    ("2 streams", {"NUM_STREAMS": "2"}, 1, 4),
)
"""Setting, its properties of OpenVINO, rows of a run, and callers."""
_ALONE = "LATENCY batch 1"


def int8(bench: Bench) -> Iterator[Measured]:
    """Make int8 products by calibration on a synthetic drive, and compare their rates with fp32."""
    units = describe_machine(())["units"]
    like = "Xeon Platinum 8270" if "avx512_vnni" in units else "i7-8700T"
    for network, (name, (width, height)) in _INT8.items():
        drive = SyntheticDrive(5, width, height)
        samples = [Sample(drive.scene(7 * number).picture) for number in range(bench.count(16, 100))]
        with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
            alone = _by_itself(bench.model(name), Path(folder))
            options = OptimizeOptions(precisions=("fp32", "int8"), rounds=bench.count(3, 7))
            found = optimize(alone, options, samples, "a synthetic drive", bench.progress)
        products = {each.label: each for each in found.candidates}
        yield from _gain(products, "openvino", "003.F1", f"{network}, {like}", f"{name}, {units}")
        if network == "mobilenet-v1":
            yield from _gain(products, "onnx", "000.S19a", "QINT8 against fp32: rate", f"{name}, {units}")


def _gain(products: Mapping[str, Product], engine: str, table: str, row: str, setting: str) -> Iterator[Measured]:
    """Yield rate_int8 / rate_fp32 of an engine, if it ran both."""
    one, other = (products.get(f"{engine}-{precision}") for precision in ("int8", "fp32"))
    if one and other and one.speed and other.speed:
        comment = f"one caller at batch 1; {one.problem or 'within the tolerance'}"
        yield of_rounds(table, row, [one.speed.rate / other.speed.rate], comment=comment, setting=setting)


def _by_itself(model: ModelVersion, folder: Path) -> ModelVersion:
    """Return a copy of a model that runs one row at a time; what is made of it does not stay in the repository."""
    place = folder / model.name
    shutil.copytree(model.folder.parent, place)
    config = place / "model.toml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("max_batch_size")]
    config.write_text("\n".join(["max_batch_size = 1", *lines, ""]))
    return Repository(folder).find(model.name)


def streams(bench: Bench) -> Iterator[Measured]:
    """Measure OpenVINO's settings with MobileNet: one run after the other, batches, and several streams, in turns."""
    rates = _rates_by_setting(bench.model("mobilenet_224_onnx"), bench.count(3, 9), bench.count(5, 20) / 10)
    for name, _, _, callers in _STREAMS:
        yield of_rounds("003.F3", f"{name}: rate", rates[name], comment=f"{callers} in flight")
    beside = [both / one for both, one in zip(rates["THROUGHPUT"], rates[_ALONE], strict=True)]
    yield of_rounds("003.F2", "asynchronous against synchronous: rate", beside, comment="4 in flight against 1")
    best = {kind: max(median(rates[name]) for name in rates if kind in name) for kind in ("stream", "batch")}
    yield of_rounds("003.F4", "streams against the best batch: rate", [best["stream"] / best["batch"]])
    yield of_rounds("003.F5", "AVX-512 VNNI here", ["avx512_vnni" in describe_machine(())["units"]])


def _rates_by_setting(model: ModelVersion, rounds: int, seconds: float) -> Mapping[str, list[float]]:
    """Return the frames a second of each setting, one figure a round."""
    load = choose_loader(model.path, "openvino")
    backends = {name: load(model.path, LoadOptions(parameters=given)) for name, given, _, _ in _STREAMS}
    rates: dict[str, list[float]] = {name: [] for name in backends}
    for _ in range(rounds):
        for name, _, batch, callers in _STREAMS:
            feeds = RandomInputs().make(backends[name].inputs, batch)
            run = partial(backends[name].infer, feeds)
            with ThreadPoolExecutor(callers) as pool:
                found = [pool.submit(repeat, run, seconds, 3) for _ in range(callers)]
            rates[name].append(batch * sum(each.result().rate for each in found))
    return rates


def fused_graphs(bench: Bench) -> Iterator[Measured]:
    """Count what ONNX Runtime's optimisations leave of MobileNet's graph, and measure it without and with them."""
    onnxruntime, onnx = import_onnxruntime(), import_extra("onnx", "optimize")
    model = bench.model("mobilenet_224_onnx")
    levels = onnxruntime.GraphOptimizationLevel
    nodes: dict[str, list[str]] = {}
    runs: dict[str, Callable[[], object]] = {}
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        for name, level in (("off", levels.ORT_DISABLE_ALL), ("all", levels.ORT_ENABLE_ALL)):
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = level
            options.intra_op_num_threads = default_threads()
            options.optimized_model_filepath = f"{folder}/{name}.onnx"
            session = onnxruntime.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
            nodes[name] = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
            feeds = {each.name: np.zeros((1, 224, 224, 3), np.uint8) for each in session.get_inputs()}
            runs[name] = partial(session.run, None, feeds)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(bench.count(3, 9)):
        for name, run in runs.items():
            times[name].append(float(np.median(repeat(run, 0.5, 3).latencies_ns)))
    ratios = [plain / fused for plain, fused in zip(*times.values(), strict=True)]
    left = {name: each.count("BatchNormalization") for name, each in nodes.items()}
    comment = f"{left['off']} before; {len(nodes['off'])} nodes to {len(nodes['all'])}"
    yield of_rounds("003.F7", "BatchNormalization nodes left, all optimisations", [left["all"]], comment=comment)
    yield of_rounds("003.F7", "p50 without optimisation against all", ratios)
    share = len(nodes["off"]) / len(nodes["all"])
    yield of_rounds("000.S19b", "layer fusion: nodes before against after", [share], comment="by ONNX Runtime")


def keras_against_engines(bench: Bench) -> Iterator[Measured]:
    """Measure `model.predict` of Keras against a call of the model, the SavedModel, ONNX Runtime and OpenVINO."""
    seconds = bench.count(10, 50) / 10
    for name, network, side in (("mobilenet_224", mobilenet(), 224), ("noscope_50", noscope(), 50)):
        picture = np.zeros((1, side, side, 3), np.float32)
        predict = repeat(partial(network.predict, picture, verbose=0), seconds, 3).rate
        called = repeat(partial(_called, network, picture), seconds, 3).rate
        saved, graph = bench.model(f"{name}_savedmodel").path, bench.model(f"{name}_onnx").path
        subjects = [
            Subject("SavedModel signature", saved, "tensorflow"),
            Subject("ONNX Runtime", graph, "onnxruntime"),
            Subject("OpenVINO", graph, "openvino"),
        ]
        rates = {"model(x)": called}
        for profile in measure(subjects, Plan(rounds=2, seconds=seconds / 2), bench.progress):
            if point := profile.at(1):
                rates[profile.name] = point.rate
        for contestant, rate in rates.items():
            row = f"{name}: {contestant} against model.predict, 1 caller: rate"
            yield of_rounds("003.S3", row, [rate / predict], comment=f"{rate:,.0f}/s against {predict:,.0f}/s")
    yield from _predicted_jet(seconds)


def _called(network: Any, picture: Array) -> Array:
    return np.asarray(network(picture, training=False))


def _predicted_jet(seconds: float) -> Iterator[Measured]:
    network = conv_vae()
    jet = np.zeros((1, 100, 3), np.float32)

    def predict() -> None:
        mean, _ = network.encoder.predict(jet, verbose=0)
        network.decoder.predict(mean, verbose=0)

    times = repeat(predict, seconds, 3).latencies_ns / 1e6
    p50, comment = float(np.median(times)), "encoder and decoder, without the scores"
    yield of_rounds("002.F1", "keras model.predict batch 1", [p50], len(times), comment=comment)


def formats(bench: Bench) -> Iterator[Measured]:
    """Measure the same network as a SavedModel and as a frozen graph."""
    names = ("drive_segmentation_savedmodel", "drive_segmentation")
    subjects = [Subject(name, bench.model(name).path, "tensorflow") for name in names]
    saved, frozen = measure(subjects, Plan(rounds=bench.count(3, 9), seconds=1.0), bench.progress)
    if found := ratio(saved, frozen, 1):
        yield of_rounds("001.S17a", "SavedModel against frozen graph: time", [1 / found], setting=names[1])
