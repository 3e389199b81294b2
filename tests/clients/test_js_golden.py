"""The JavaScript client against the golden and the broken messages in Chromium, and pixels in node, too."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.protocol import envelope
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.types import EncodedTensor, InferRequest
from tests.clients.node import compiled
from tests.clients.pages import ROOT, Pages, chromium_page
from tests.programs import find_program

pytestmark = pytest.mark.slow
GOLDEN = ROOT / "tests" / "golden"
_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    """Folder of the compiled client and its tests."""
    with compiled() as folder:
        yield folder


@pytest.fixture(scope="module")
def page(built: Path) -> Iterator[Any]:
    """Open a page that may load only what the test serves, and compile no WebAssembly."""
    extra = {"orientation.mqi": turned_jpeg(), "profiles.mqi": profiled_pngs()}
    with Pages({"/dist/": built, "/golden/": GOLDEN}, extra) as pages, chromium_page(pages.address) as opened:
        yield opened


def call(page: Any, function: str, *arguments: str) -> Any:
    """Call a function of clients/js/test/page.ts."""
    text = ", ".join(map(json.dumps, arguments))
    return page.evaluate(f"async () => (await import('/dist/test/page.js')).{function}({text})")


def decoded(payload: bytes) -> dict[str, Array]:
    """Decode the tensors of a request."""
    return {tensor.name: decode_tensor(tensor) for tensor in envelope.decode_request(payload).inputs}


def rgb(array: Array) -> Array:
    """Return a picture as a canvas shows it: colour, of 8 bits."""
    plain = array.view(np.uint8)[..., 1::2] if array.dtype == np.uint16 else array  # little-endian
    frame = plain[0] if plain.ndim == 4 else plain
    return frame if frame.ndim == 3 else np.repeat(frame[..., np.newaxis], 3, axis=2)


def check_pixels(pictures: list[dict[str, Any]], wanted: dict[str, Array], tolerance: int) -> None:
    """Compare what a canvas shows with what Python decodes; nothing is transparent."""
    assert [picture["name"] for picture in pictures] == list(wanted)
    for picture in pictures:
        flat = np.frombuffer(base64.b64decode(picture["pixels"]), np.uint8)
        pixels, expected = flat.reshape(picture["height"], picture["width"], 4), rgb(wanted[picture["name"]])
        assert pixels.shape[:2] == expected.shape[:2]
        assert (pixels[..., 3] == 255).all()
        assert np.abs(pixels[..., :3].astype(int) - expected).max() <= tolerance, picture["name"]


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def gradient() -> Array:
    """Return a picture with other rows than columns."""
    ramp = np.arange(0, 240, 10, dtype=np.uint8)
    return np.stack(np.broadcast_arrays(ramp[:, None], ramp[None, :16] * np.uint8(2), np.uint8(90)), axis=2)


def request(*tensors: EncodedTensor) -> bytes:
    """Return a request with these inputs."""
    return envelope.encode_request(InferRequest("r", "m", tensors))


def turned_jpeg() -> bytes:
    """Return a request with a JPEG whose EXIF says that it is to be turned by a quarter."""
    picture = gradient()
    jpeg = bytes(encode_tensor("x", picture, "jpeg:95").data)
    tag = struct.pack(">HHIHxx", 0x0112, 3, 1, 6)
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", 1) + tag + bytes(4)
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    return request(EncodedTensor("turned", Datatype.UINT8, picture.shape, "jpeg", jpeg[:2] + segment + jpeg[2:]))


def profiled_pngs() -> bytes:
    """Return a request with PNGs that state a gamma, or a colour that is transparent."""
    picture = gradient()
    png = bytes(encode_tensor("x", picture, "png").data)
    extra = {"gamma": chunk(b"gAMA", struct.pack(">I", 100_000)), "key": chunk(b"tRNS", struct.pack(">3H", 0, 0, 90))}
    return request(
        *(
            EncodedTensor(name, Datatype.UINT8, picture.shape, "png", png[:33] + more + png[33:])
            for name, more in extra.items()
        )
    )


def test_golden_messages_are_read_and_written_in_chromium(page: Any) -> None:
    """Fields, values, checksums, and the same bytes again, without WebAssembly."""
    assert call(page, "differences") == []


def test_broken_messages_are_refused_in_chromium(page: Any) -> None:
    """Each with the code that Python gives."""
    records = json.loads((GOLDEN / "broken.json").read_text("utf-8"))
    assert call(page, "codes") == {record["name"]: record["code"] for record in records}


def test_png_pixels_are_those_that_python_decodes(page: Any) -> None:
    """Bit by bit for 8 bits; the upper 8 bits of 16, rounded as the browser likes."""
    pictures, wanted = (
        call(page, "pictures", "/golden/request_png.mqi"),
        decoded((GOLDEN / "request_png.mqi").read_bytes()),
    )
    check_pixels([each for each in pictures if each["name"] == "bars"], {"bars": wanted["bars"]}, 0)
    check_pixels([each for each in pictures if each["name"] == "grey16"], {"grey16": wanted["grey16"]}, 1)


@pytest.mark.parametrize(
    ("path", "payload", "tolerance"),
    [
        ("/golden/request_jpeg.mqi", (GOLDEN / "request_jpeg.mqi").read_bytes(), 2),  # decoders round in different ways
        ("/extra/orientation.mqi", turned_jpeg(), 2),
        ("/extra/profiles.mqi", profiled_pngs(), 0),
    ],
)
def test_pixels_are_those_that_are_stored(page: Any, path: str, payload: bytes, tolerance: int) -> None:
    """The orientation of a JPEG, and gamma and transparency of a PNG, are ignored as in Python."""
    check_pixels(call(page, "pictures", path), decoded(payload), tolerance)


def in_node(program: Path, *requests: Path) -> list[dict[str, Any]]:
    """Return what a compiled `clients/js/test/live/pixels.ts` prints."""
    command = [find_program("node"), str(program), *map(str, requests)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_pixels_in_node_are_those_that_python_decodes(built: Path, tmp_path: Path) -> None:
    """Bit by bit, of 8 and 16 bits, grey and colour; orientation, gamma and transparency are ignored."""
    requests = [GOLDEN / "request_png.mqi", GOLDEN / "request_jpeg.mqi"]
    for name, payload in (("turned", turned_jpeg()), ("profiled", profiled_pngs())):
        requests.append(tmp_path / f"{name}.mqi")
        requests[-1].write_bytes(payload)
    wanted = [each for path in requests for each in decoded(path.read_bytes()).items()]
    pictures = in_node(built / "test" / "live" / "pixels.js", *requests)
    assert [picture["name"] for picture in pictures] == [name for name, _ in wanted]
    for picture, (name, expected) in zip(pictures, wanted, strict=True):
        pixels = np.frombuffer(base64.b64decode(picture["data"]), expected.dtype)
        assert pixels.reshape(picture["shape"]).tolist() == expected.tolist(), name


def test_without_the_package_for_pictures_its_name_is_said(built: Path, tmp_path: Path) -> None:
    """In a folder from which node finds no package, the error says which one to install."""
    for part in ("src", "test/live"):
        shutil.copytree(built / part, tmp_path / part)
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    found = in_node(tmp_path / "test" / "live" / "pixels.js", GOLDEN / "request_jpeg.mqi")
    assert {picture["code"] for picture in found} == {"missing_extra"}
    assert all("npm install sharp" in picture["message"] for picture in found)
