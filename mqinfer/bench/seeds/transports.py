"""Documents 000 and 001: MQTT, gRPC and REST to the same model, vehicles, a thin link, and the messages themselves."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from mqinfer.bench.comparing import ComparedSeries, CompareOptions, Comparison, LinkOptions
from mqinfer.bench.contestants.driving import Load
from mqinfer.bench.contestants.site import chosen
from mqinfer.bench.contestants.ways import predict_body, predict_maker, request_maker
from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.formulas import rate_gained, time_saved
from mqinfer.bench.seeds.pictures import recording, with_mask
from mqinfer.bench.seeds.rows import Measured, NotMeasured, of_rounds
from mqinfer.bench.workloads import Workload, load_workloads, record_workload
from mqinfer.client.request import make_request
from mqinfer.extras import check_packages
from mqinfer.lab.load import call_times
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.envelope import encode_request
from mqinfer.protocol.errors import ConfigError

_NAMES: Mapping[str, str] = {
    "in-process": "in process",
    "bare-grpc": "bare gRPC",
    "mqtt": "MQTT raw",
    "mqtt-jpeg": "MQTT jpeg:90",
    "grpc": "gateway gRPC",
    "rest-binary": "gateway REST binary",
    "rest-json": "gateway REST",
    "tfs-grpc": "gateway TFS gRPC",
    "tfs-rest": "gateway TFS REST",
}
"""Contestants by their name in the documents' rows."""
_SMALL, _LARGE = ("mobilenet_224_onnx", (224, 224)), ("drive_segmentation_2048_1024_onnx", (2048, 1024))
_FRAMES = 10
"""Different frames that requests carry in turn."""
_SHAPES = ((16,), (224, 224, 3), (608, 608, 3))
_MODEL, _INPUT = "model", "input"


def small_frames(bench: Bench) -> Iterator[Measured | NotMeasured]:
    """Measure every way with frames of 224x224 and MobileNet, one caller and 8."""
    load = Load(samples=bench.count(0, 300_000), seconds=bench.count(2, 1200))
    found = _compared(bench, [_frames(bench, *_SMALL)], list(_NAMES), CompareOptions(load=load, callers=(1, 8)))
    for each in found:
        row = f"{_NAMES[each.contestant]}, {each.callers} caller{'s' * (each.callers > 1)}"
        rates, results = [one.rate for one in each.rounds if one.results], sum(one.results for one in each.rounds)
        yield _row_of(each, "000.F1", row, rates, results, unit="requests/s")
    alone = {each.contestant: each for each in found if each.callers == 1}
    yield from _latencies("224x224", alone)
    gained = _ratios(alone, "rest-json", "grpc")
    yield from _row("000.S10", "gRPC against REST: rate", gained, comment="JSON of numbers, 1 caller")


def large_frames(bench: Bench) -> Iterator[Measured | NotMeasured]:
    """Measure every way with frames of 2048x1024 and a segmentation network whose argmax is in the graph."""
    options = CompareOptions(load=Load(seconds=bench.count(4, 60)), callers=(1,))
    found = _compared(bench, [_frames(bench, *_LARGE)], list(_NAMES), options)
    alone = {each.contestant: each for each in found}
    yield from _latencies("2048x1024", alone)
    # JSON of TensorFlow Serving's REST has a list for each pixel; so many values may be more than the gateway takes.
    rest, grpc = ("tfs-rest", "tfs-grpc") if alone["tfs-rest"].rounds else ("rest-json", "grpc")
    pairs = list(zip(*map(_milliseconds, (alone[rest], alone[grpc])), strict=False))
    for row, formula in (("time saved", time_saved), ("rate gained", rate_gained)):
        figures = [100 * formula(one, other) for one, other in pairs]
        comment = f"{_NAMES[grpc]} against {_NAMES[rest]}, mask out"
        yield from _row("001.C1", f"gRPC against REST, {row}: total", figures, comment=comment)
    for row, front in (("gRPC", "tfs-grpc"), ("REST", rest)):
        ratios = _ratios(alone, "mqtt-jpeg", front)
        yield from _row("001.C4", f"MQTT against {row}: time", ratios, comment=f"jpeg:90 against {_NAMES[front]}")


def tensorflow_serving(bench: Bench) -> Iterator[Measured | NotMeasured]:
    """Measure the document's two large networks through the gateway's fronts of TensorFlow Serving.

    Their logits, 160 MB a frame, are more than a packet of a broker may have: the worker makes the mask of them.
    """
    options = CompareOptions(load=Load(seconds=bench.count(4, 60)), callers=(1,), rounds=2)
    for model, name in (("model 2", "mobilenetv3_large_os8_deeplabv3plus"), ("model 3", "encoder_decoder_2048_1024")):
        with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
            workload = _frames(with_mask(bench, name, Path(folder)), name, (2048, 1024))
            for each in _compared(bench, [workload], ["tfs-grpc", "tfs-rest"], options):
                row = f"{model}, CPU, PC, {'REST' if each.contestant == 'tfs-rest' else 'gRPC'}"
                yield _row_of(each, "001.T2", row, _milliseconds(each), setting=f"{name}, mask out")


def vehicles(bench: Bench) -> Iterator[Measured]:
    """Measure what vehicles that send 10 frames a second each get, by their number and that of the workers."""
    bench.model("frame_mask")
    workloads = load_workloads(bench.repository, ("frame",))
    numbers, workers = ((1, 2, 4, 8, 16, 32, 64), (1, 2, 4)) if bench.full else ((1, 4, 16), (1, 2))
    load = Load(callers=2, seconds=bench.count(3, 20), rate=10.0)
    options = CompareOptions(numbers, workers, load=load, callers=(2,), rounds=1)
    for each in (found for found in _compared(bench, workloads, ["mqtt"], options) if found.rounds):
        turn = each.rounds[0]
        about = f"{10 * each.vehicles} offered, {turn.dropped} replaced by newer frames, Jain {turn.jain:.2f}"
        row = f"{each.vehicles} vehicles, {each.workers} workers: answered"
        yield of_rounds("001.C5", row, [turn.rate], turn.results, comment=f"{about}, {_about(each)}")


def thin_link(bench: Bench) -> Iterator[Measured]:
    """Compare MQTT with JPEG and gRPC behind a thin link, with frames of 968x608."""
    workload = _frames(bench, "drive_segmentation_onnx", (968, 608))
    for mbit in (50, 10, 2):
        load = Load(seconds=bench.count(4, 60))
        options = CompareOptions(load=load, callers=(1,), rounds=2, link=LinkOptions(mbit, 25.0))
        found = {each.contestant: each for each in _compared(bench, [workload], ["mqtt-jpeg", "grpc"], options)}
        ratios = _ratios(found, "grpc", "mqtt-jpeg")
        comment = "rate against rate, 25 ms each way"
        yield from _row("001.S18a", f"MQTT jpeg:90 against gRPC behind {mbit} Mbit/s", ratios, comment=comment)


def _frames(bench: Bench, model: str, size: tuple[int, int]) -> Workload:
    bench.model(model)
    with recording(bench, size) as source:
        return record_workload(source, model, bench.repository, _FRAMES)


def _compared(
    bench: Bench, workloads: Sequence[Workload], names: Sequence[str], options: CompareOptions
) -> list[ComparedSeries]:
    """Return the contestants; those without rounds have a reason.

    Raises:
        ConfigError: The comparison could not begin.
    """
    comparison = Comparison(workloads, chosen(names), options, bench.progress)
    try:
        comparison.run()
    except ConfigError:
        if not comparison.found:
            raise  # else none was measured, and each has its reason
    return comparison.found


def _latencies(size: str, found: Mapping[str, ComparedSeries]) -> Iterator[Measured | NotMeasured]:
    for name, each in found.items():
        yield _row_of(each, "001.C4", f"{size} {_NAMES[name]}, p50", _milliseconds(each))


def _row_of(
    each: ComparedSeries, table: str, row: str, figures: Sequence[float], samples: int = 1, **words: str
) -> Measured | NotMeasured:
    """Return the row of a contestant's figures, or why there are none."""
    if not figures:
        return NotMeasured(table, row, each.reason)
    return of_rounds(table, row, figures, samples, comment=_about(each), **words)


def _milliseconds(each: ComparedSeries) -> list[float]:
    return [1e3 * median(one.times) for one in each.rounds if one.times]


def _ratios(found: Mapping[str, ComparedSeries], above: str, below: str) -> list[float]:
    """Return the ratios of the times of two contestants, one a round."""
    pairs = zip(*map(_milliseconds, (found[above], found[below])), strict=False)
    return [one / other for one, other in pairs]


def _about(each: ComparedSeries) -> str:
    """Return percentiles, bytes on the way and failures."""
    times = np.concatenate([one.times for one in each.rounds if one.times])
    p50, p99 = (1e3 * float(figure) for figure in np.percentile(times, (50, 99)))
    failed = sum(sum(one.failures.values()) for one in each.rounds)
    sizes = f", {each.traffic[0] / 1e3:,.0f} kB up and {each.traffic[1] / 1e3:,.0f} kB down" if each.traffic else ""
    return f"p50 {p50:.3g} ms, p99 {p99:.3g} ms{sizes}, {failed} failed"


def _row(table: str, row: str, figures: Sequence[float], comment: str) -> Iterator[Measured]:
    """Yield a row, unless one of its contestants was not measured."""
    if figures:
        yield of_rounds(table, row, figures, comment=comment)


def messages(bench: Bench) -> Iterator[Measured]:
    """Write and read one request with a float32 tensor of three sizes in six forms."""
    check_packages({"google.protobuf": "protobuf"}, "gateway")
    rounds, ratios = bench.count(3, 20), list[float]()
    for shape in _SHAPES:
        array = np.random.default_rng(0).random(shape, np.float32)
        name = "x".join(map(str, shape))
        forms = _forms(array)
        for form, make in forms.items():
            yield of_rounds("000.S11", f"[{name}] {form}, bytes", [len(make())])
        pairs: Mapping[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "read": (partial(_from_json, forms["JSON numbers"]()), partial(_from_protobuf, forms["OIP protobuf"]())),
            "write": (forms["JSON numbers"], forms["OIP protobuf"]),
        }
        for word, (one, other) in pairs.items():
            ratios = [_seconds(one) / _seconds(other) for _ in range(rounds)]
            row = f"[{name}] JSON numbers against OIP protobuf: time to {word}"
            yield of_rounds("000.S11", row, ratios, comment=f"JSON takes {1e3 * _seconds(one):.3g} ms")
    yield of_rounds("001.S4", "JSON against gRPC: time of a message", ratios, comment="[608x608x3], to write")


def _forms(array: Array) -> Mapping[str, Callable[[], bytes]]:
    asked = Workload(_MODEL, _MODEL, Path(_MODEL), _INPUT, array, "output", array)

    def text() -> bytes:
        content = base64.b64encode(array.tobytes()).decode()
        return json.dumps({"inputs": {_INPUT: {"b64": content, "shape": list(array.shape)}}}).encode()

    def xml() -> bytes:
        return f"<input>{''.join(f'<v>{value}</v>' for value in array.ravel().tolist())}</input>".encode()

    return {
        "OIP protobuf": partial(request_maker(asked), array),
        "TFS protobuf": partial(predict_maker(asked), array),
        "mqinfer": lambda: encode_request(make_request(_MODEL, {_INPUT: array}, {})),
        "JSON numbers": lambda: predict_body(asked, array)[0],
        "JSON base64": text,
        "XML": xml,
    }


def _from_protobuf(data: bytes) -> Array:
    from mqinfer.gateway.messages import message_class

    request = message_class("inference.ModelInferRequest").FromString(data)
    return np.frombuffer(request.raw_input_contents[0], np.float32)


def _from_json(text: bytes) -> Array:
    return np.array(json.loads(text)["inputs"][_INPUT], np.float32)


def _seconds(work: Callable[[], object]) -> float:
    """Return the least of three times, the one that other programs disturbed least."""
    return float(min(call_times(work, 3)))
