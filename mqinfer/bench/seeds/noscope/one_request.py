"""Document 004's section 4.4.1: what one request costs in each part of the cascade, and on its way to the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.noscope.scene import read_scene
from mqinfer.bench.seeds.noscope.table_1 import over_json, over_mqtt, timed_servers
from mqinfer.bench.seeds.rows import Measured, of_rounds
from mqinfer.images.picture import CompressedImage
from mqinfer.judging.thumbnail import difference, thumbnail
from mqinfer.lab.load import call_times
from mqinfer.lab.zoo.networks.yolo_v2 import yolo_network, yolo_v2
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository

_Input = TypeVar("_Input")
_FRAMES, _RUNS = 100, 10
_SIDE, _SMALL_SIDE = 608, 320
_BATCH = 8
_ENCODINGS = ("raw", "lz4", "jpeg:90")


def one_request(bench: Bench) -> Iterator[Measured]:
    """Measure the parts one at a time, then a request's way by REST with JSON and by MQTT."""
    scene = read_scene(bench.source, range(_FRAMES), _SIDE, bench.progress)
    seen = [thumbnail(each) for each in scene]
    compared = _seconds(lambda frame: difference(seen[0], thumbnail(frame)), scene)
    about = "the comparison, and reading a JPEG of 608x608 as 50x50"
    yield from _part("detector", "detector", compared, _FRAMES, about)
    with closing(load_model(bench.model("noscope_50_onnx")).backend) as small:
        one = _seconds(small.infer, [{small.inputs[0].name: each[None]} for each in seen])
    yield from _part("specialised network", "specialised network", one, _FRAMES, "noscope_50, ONNX Runtime, batch 1")
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        yield from _reference(bench, Path(folder))
        yield from _transmission(Path(folder), scene[:_RUNS])


def _seconds(work: Callable[[_Input], object], inputs: Sequence[_Input]) -> float:
    """Return the median time of a call with each input, after one that does not count."""
    given = iter((inputs[0], *inputs))
    return float(median(call_times(lambda: work(next(given)), len(inputs))))


def _part(part: str, rate: str, seconds: float, samples: int, setting: str) -> Iterator[Measured]:
    yield of_rounds("004.S1", part, [seconds], samples, setting=setting)
    yield of_rounds("004.F1", rate, [1 / seconds], samples, setting=setting)


def _reference(bench: Bench, folder: Path) -> Iterator[Measured]:
    """Yield the time of YOLOv2 alone, in a batch, and with smaller pictures, on TensorFlow as in the document."""
    whole, about = _yolo_s(bench.model("yolo_v2_608"), _SIDE, 1), "YOLOv2, frozen graph on TensorFlow"
    yield from _part("reference", "reference, least", whole, _RUNS, f"{about}, batch 1")
    version = folder / "yolo" / "1"
    version.mkdir(parents=True)
    yolo_network(yolo_v2(_SMALL_SIDE)).write(version / "model.pb")
    smaller = Repository(folder).find("yolo", None)
    one, several = (_yolo_s(smaller, _SMALL_SIDE, batch) for batch in (1, _BATCH))
    ratios = {
        f"resolution {_SMALL_SIDE} against {_SIDE}: time of the reference": one / whole,
        f"batch {_BATCH} against 1: time a frame": several / _BATCH / one,
    }
    for row, ratio in ratios.items():
        bench.progress(f"  {row}: {ratio:.2f}")
        yield of_rounds("004.D", row, [ratio], samples=_RUNS, setting=about)


def _yolo_s(model: ModelVersion, side: int, batch: int) -> float:
    pictures = np.random.default_rng(7).integers(0, 256, (batch, side, side, 3)).astype(np.uint8)
    with closing(load_model(model).backend) as backend:
        return _seconds(backend.infer, [{backend.inputs[0].name: pictures}] * max(_RUNS // batch, 3))


def _transmission(folder: Path, scene: Sequence[CompressedImage]) -> Iterator[Measured]:
    """Yield the time of a request to a reference that takes none, with what the client does for it."""
    count = len(scene)
    with timed_servers(folder / "models", _SIDE, 0.0, (1,)) as (client, port):
        by_json = _seconds(over_json(port, 1), scene)
        setting = "JSON floats over TensorFlow Serving's REST API, a reference that takes no time"
        yield of_rounds("004.S1", "transmission, JSON", [by_json], samples=count, setting=setting, unit="s")
        spent = {}
        for encoding in _ENCODINGS:
            found = list(map(over_mqtt(client, 1, encoding), scene))
            ways = [
                each.encode_s + (each.timings.client_queue + each.timings.transmission) / 1e9
                for each in found
                if each.timings
            ]
            spent[encoding] = median(ways)
            sent = sum(each.sent for each in found) / count / 1e6
            name = "transmission" if encoding == "jpeg:90" else f"transmission, {encoding}"
            setting = f"{encoding} over MQTT, {sent:.2f} MB a frame; T_c.q and T_n, with encoding"
            yield of_rounds("004.S1", name, [spent[encoding]], samples=count, setting=setting, unit="s")
    row, setting = "payload compression: jpeg:90 against raw, T_c.q + T_n", "on one machine, without a thin link"
    yield of_rounds("004.D", row, [spent["jpeg:90"] / spent["raw"]], samples=count, setting=setting)
