"""Documents 000 and 001: frames in each encoding, LZ4, and segmentation by model as its vehicles had it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mqinfer.bench.encodings import EncodingFigures, EncodingsOptions, measure_encodings
from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.formulas import break_even_mbit
from mqinfer.bench.seeds.rows import Measured, of_rounds
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.images.pixel_format import demosaic
from mqinfer.lab.drives.mosaic import make_mosaic
from mqinfer.lab.drives.recording import write_drive
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.lab.load import call_times
from mqinfer.lab.model_process import card_of
from mqinfer.protocol.datatypes import Array

_ENCODINGS = ("raw", "lz4", "shuffle-lz4", "png", "jpeg:90", "jpeg:75", "h264")
_LINKED = ("raw", "jpeg:90", "h264")
_MODELS: Mapping[str, tuple[str, tuple[int, int]]] = {
    "model 1 small": ("mobilenet_v3_small_968_608_os8", (968, 608)),
    "model 1 large": ("mobilenet_v3_large_968_608_os8", (968, 608)),
    "model 2": ("mobilenetv3_large_os8_deeplabv3plus", (2048, 1024)),
    "model 3": ("encoder_decoder_2048_1024", (2048, 1024)),
}
"""Networks of the zoo with the shapes of document 001's, and the size of their frames."""
_MOST_FRAMES = 5000
"""Frames that are held in memory at most."""


def encodings(bench: Bench) -> Iterator[Measured]:
    """Measure each encoding of frames of 224x224 with MobileNet, without a link and behind two thin ones."""
    model, seconds = bench.model("mobilenet_224_onnx").name, bench.count(5, 60)
    with recording(bench, (224, 224)) as source:
        count = bench.count(60, _MOST_FRAMES)
        alone = EncodingsOptions(source, model, bench.repository, encoding=[*_ENCODINGS], frames=count)
        figures = measure_encodings(alone, bench.progress).figures
        for each in figures:
            setting = f"{model}, one caller, {each.alone.frame_bytes:,.0f} bytes a frame"
            about = _cost(each, figures[0])
            row = f"{each.encoding}, no link"
            yield of_rounds("000.F2", row, [each.p50_ms], count, comment=about, setting=setting)
        for mbit in (10, 2):
            linked = EncodingsOptions(
                source, model, bench.repository, encoding=[*_LINKED], frames=20, link_mbit=mbit, seconds=seconds
            )
            rates = {each.encoding: each.link_rate or 0.0 for each in measure_encodings(linked, bench.progress).figures}
            for encoding, rate in rates.items():
                yield of_rounds("000.F2", f"{encoding}, {mbit} Mbit/s", [rate], int(rate * seconds))
            if mbit == 2 and rates["raw"]:
                yield of_rounds("000.S7a", "jpeg:90 against raw at 2 Mbit/s", [rates["jpeg:90"] / rates["raw"]])


def _cost(each: EncodingFigures, raw: EncodingFigures) -> str:
    """Return what an encoding costs, and below which bandwidth it pays."""
    one, other = each.alone, raw.alone
    added = (one.edge_ms + one.worker_ms - other.edge_ms - other.worker_ms) / 1e3
    pays = break_even_mbit(other.frame_bytes, one.frame_bytes, added)
    below = f", pays below {pays:,.0f} Mbit/s" if 0 < pays < float("inf") else ""
    cpu = f"processor {one.edge_ms:.2g} ms at the edge and {one.worker_ms:.2g} ms at the worker"
    return f"{cpu}, {100 * each.changed:.2g} % of the answers changed{below}"


@contextmanager
def recording(bench: Bench, size: tuple[int, int]) -> Iterator[str]:
    """Yield the recording of the user, or a synthetic drive of a size that is there until the end of the block."""
    if bench.source is not None:
        yield bench.source
        return
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        path, (width, height) = Path(folder) / "drive", size
        yield str(write_drive(path, ros=2, frames=60, seed=2, width=width, height=height, encoding="rgb8"))


def with_mask(bench: Bench, name: str, folder: Path) -> Bench:
    """Return the same for a repository in a folder, which has one model with the mask that a worker makes of logits."""
    model = bench.model(name)
    shutil.copytree(model.folder.parent, folder / name)
    config = folder / name / "model.toml"
    if "[segmentation]" not in (text := config.read_text(encoding="utf-8")):
        output = card_of(model).outputs[0].name
        config.write_text(f'{text}\n[segmentation]\noutput = "{output}"\n', encoding="utf-8")
    return replace(bench, repository=folder)


def lossless(bench: Bench) -> Iterator[Measured]:
    """Measure LZ4 in one thread, JPEG and demosaicing, on a frame of the drive and on what models return."""
    scene = SyntheticDrive(2).scene(0)
    random = np.random.default_rng(0)
    arrays: Mapping[str, Array] = {
        "": scene.picture,
        ", mask": scene.mask,
        ", 3x224x224 fp32": random.standard_normal((3, 224, 224), np.float32),
        ", logits 20x256x512": random.standard_normal((20, 256, 512), np.float32),
    }
    for name, array in arrays.items():
        encoded = encode_tensor("x", array, "lz4")
        share = memoryview(encoded.data).nbytes / array.nbytes
        works = {
            "compression": lambda a=array: encode_tensor("x", a, "lz4"),
            "decoding": lambda e=encoded: decode_tensor(e),
        }
        for word, work in works.items():
            rates = [array.nbytes / 1e6 / seconds for seconds in call_times(work, bench.count(20, 200))]
            comment = f"{'frame of 968x608' if not name else name[2:]}, to {share:.0%} of its bytes"
            yield of_rounds("000.T1", f"LZ4 {word}{name}", rates, len(rates), comment=comment, unit="MB/s")
    jpeg = encode_tensor("x", scene.picture[None, :224, :224], "jpeg:90", {"image_encoding": "rgb8"})
    mosaic = make_mosaic(scene.picture, "rggb")
    times: Mapping[tuple[str, str], Callable[[], object]] = {
        ("000.S12", "JPEG 224x224 decode on the CPU"): partial(decode_tensor, jpeg),
        ("001.S17b", "demosaicing a frame of 968x608"): partial(demosaic, mosaic, "rggb"),
    }
    for (table, row), timed in times.items():
        yield of_rounds(table, row, [1e3 * each for each in call_times(timed, bench.count(20, 200))])


def segmentation_models(bench: Bench) -> Iterator[Measured]:
    """Report the files of the four networks, and measure a frame of each over MQTT as a JPEG of quality 95."""
    for number, (row, (name, size)) in enumerate(_MODELS.items()):
        model = bench.model(name)
        files = [model.path] if model.path.is_file() else [path for path in model.path.rglob("*") if path.is_file()]
        megabytes = sum(path.stat().st_size for path in files) / 1e6
        yield of_rounds("001.M", f"{row}: file", [megabytes], comment=f"{name}, random weights of the same shapes")
        if number == 2 and "001.M" in bench.tables:
            card = card_of(model)
            yield of_rounds("001.M", "models 2 and 3: values in", [float(np.prod(card.inputs[0].shape[1:]))])
        if "001.T1" in bench.tables:
            with recording(bench, size) as source:
                options = EncodingsOptions(
                    source, name, bench.repository, encoding=["jpeg:95"], frames=bench.count(3, 20)
                )
                found = measure_encodings(options, bench.progress).figures[-1]
            about = f"{_cost(found, found)}; up to the mask at the edge, TensorFlow"
            yield of_rounds("001.T1", f"{row}, CPU, PC", [found.p50_ms], options.frames, comment=about, setting=name)


def share_of_postprocessing(bench: Bench) -> Iterator[Measured]:
    """Measure the share of post-processing with logits out, of which the worker makes the mask, and without."""
    drive = "drive_segmentation_2048_1024_onnx"
    bench.model(drive)
    frames = bench.count(3, 20)
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder, recording(bench, (2048, 1024)) as source:
        with_logits = with_mask(bench, "encoder_decoder_2048_1024", Path(folder))
        asked = {"logits out": ("encoder_decoder_2048_1024", with_logits.repository)}
        for row, (name, repository) in (asked | {"argmax in the graph": (drive, bench.repository)}).items():
            options = EncodingsOptions(source, name, repository, encoding=["jpeg:90"], frames=frames)
            found = measure_encodings(options, bench.progress).figures[-1]
            full, comment = f"share of post-processing, CPU, {row}", f"{name}; encoding included"
            yield of_rounds("001.C3", full, [100 * found.finishing], frames, comment=comment)
    logits = np.random.default_rng(0).standard_normal((1024, 2048, 20), np.float32)
    times = [1e3 * each for each in call_times(lambda: logits.argmax(2), bench.count(3, 20))]
    yield of_rounds("001.C3", "argmax of 1024x2048x20 float32", times, len(times))
