"""DeepStack's calls: a picture in a form goes to a real worker; what it finds comes back in the picture's pixels."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from mqinfer.gateway.access import GRANTED, Access
from mqinfer.gateway.deepstack.forms import read_form
from mqinfer.protocol.errors import BadEnvelope
from mqinfer.web.keys import KeyFile
from tests.gateway import rest_front
from tests.gateway.conftest import Fleet, OpenCore, call_peer, serve_repository
from tests.gateway.test_pictures import BAD, OTHER, PICTURE, WIDE, file, pixels, write_finder
from tests.patience import until

DETECTION, CUSTOM = "/v1/vision/detection", "/v1/vision/custom/finder"
KEY = "key-of-ann-0123456789"
LARGE = file(pixels(1200, 1600))  # above 4 MiB, for noise does not compress
BOUNDARY = "0123456789abcdef"


@pytest.fixture(scope="module")
def fleet(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Serve a model that finds boxes, and one that takes pictures and finds none, by two processes each."""
    repository = tmp_path_factory.mktemp("deepstack")
    write_finder(repository / "finder")
    echo = repository / "echo" / "1" / "model.echo"
    echo.parent.mkdir(parents=True)
    echo.write_text('[[input]]\nname = "x"\ndatatype = "FP32"\nshape = [-1, 3, 8, 8]\n')
    (echo.parents[1] / "model.toml").write_text('image = { input = "x", layout = "NCHW", scale = 1 }\n')
    with serve_repository(repository, broker_url, "deepstack", instances=2) as served:
        yield served


def form(*pictures: bytes, **fields: str) -> bytes:
    """Return a form as requests writes it: the fields, then the pictures."""
    parts = [(f'name="{name}"', value.encode()) for name, value in fields.items()]
    parts += [('name="image"; filename="../../etc/passwd"\r\nContent-Type: text/html', each) for each in pictures]
    return (
        b"".join(
            b"--%s\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (BOUNDARY.encode(), head.encode(), content)
            for head, content in parts
        )
        + b"--%s--\r\n" % BOUNDARY.encode()
    )


HEADERS = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


async def send(front: rest_front.Front, path: str, body: bytes, headers: dict[str, str] | None = None) -> Any:
    """Return status and JSON of a call."""
    headers = HEADERS if headers is None else headers
    async with front.session.post(front.url + path, data=BytesIO(body), headers=headers) as reply:
        return reply.status, await reply.json()


async def test_boxes_in_the_picture_s_own_pixels(front: rest_front.Front) -> None:
    """They are those that clients over MQTT find, the best first; the least confidence and the limit hold."""
    for picture in (PICTURE, WIDE, OTHER):
        wanted: Any = await front.core.client.infer_picture("finder", picture)
        status, found = await send(front, DETECTION, form(picture, min_confidence="0"))
        assert (status, found["success"], found["count"]) == (200, True, 2)
        assert [
            [each["label"], each["confidence"], *(each[side] for side in ("x_min", "y_min", "x_max", "y_max"))]
            for each in found["predictions"]
        ] == [[each.name, pytest.approx(each.score), *map(round, each.box)] for each in wanted.detections]
        assert all(isinstance(each["x_min"], int) for each in found["predictions"])
        assert found["analysisRoundTripMs"] >= found["processMs"] >= found["inferenceMs"] >= 0
    for path, least, count in (
        (DETECTION, "0.6", 1),
        (CUSTOM, "", 2),
        (CUSTOM, "0.95", 0),
        (CUSTOM + "?limit=1", "", 1),
    ):
        status, found = await send(front, path, form(PICTURE, min_confidence=least, api_key="", other="x"))
        assert (status, len(found["predictions"])) == (200, count), path


CLIENT = """
    import sys
    from deepstack.core import DeepstackException, DeepstackObject, get_objects_summary

    ip, port = sys.argv[1].split(":")
    picture = open(sys.argv[2], "rb").read()

    def client(**options):
        return DeepstackObject(ip, port, timeout=60, **options)

    wanted = client().detect(picture)
    assert get_objects_summary(wanted) == {"3": 1, "road": 1}, wanted
    assert client(custom_model="finder", min_confidence=0.0).detect(picture) == wanted
    assert [each["label"] for each in client(min_confidence=0.6).detect(picture)] == ["3"]
    for options, data, words in (
        ({}, picture[:100], "status code: 400"),
        ({"custom_model": "nope"}, picture, "Bad url supplied"),
    ):
        try:
            client(**options).detect(data)
        except DeepstackException as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
    for number in range(300):
        assert client().detect(picture) == wanted, number
    print("PASS")
"""


async def test_a_published_client(
    front: rest_front.Front, fleet: Fleet, peer_python: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its calls give what its own server would; none fails or differs while the worker that answers is killed."""
    path, outcomes = tmp_path / "a.jpg", front.core.inference.outcomes
    path.write_bytes(PICTURE)
    found = await front.core.client.infer_picture("finder", PICTURE)
    calls = asyncio.create_task(
        call_peer(peer_python("deepstack"), CLIENT, front.url.removeprefix("http://"), str(path))
    )
    await until(lambda: outcomes["finder", "ok"] > 50 or calls.done())
    os.kill(fleet.supervisor.pids[found.result.worker], signal.SIGKILL)
    await calls
    assert outcomes == {("finder", "ok"): 303, ("finder", "bad_tensor"): 1}


async def test_the_models_that_can_be_asked(front: rest_front.Front) -> None:
    """Those that find boxes, by either method and with any form."""
    wanted = (200, {"success": True, "models": ["finder"]})
    for body, headers in (
        (b"", {}),
        (form(), None),
        (b"api_key=&x=y", {"Content-Type": "application/x-www-form-urlencoded"}),
    ):
        assert await send(front, "/v1/vision/custom/list", body, headers) == wanted
    reply = await front("GET", "/v1/vision/custom/list")
    assert (reply.status, reply.json) == wanted


WRONG: dict[str, tuple[str, bytes, dict[str, str] | None, int, str]] = {
    "no picture": (DETECTION, form(min_confidence="0.4"), None, 400, "No valid image file found"),
    "an empty one": (DETECTION, form(b""), None, 400, "No valid image file found"),
    "two pictures": (DETECTION, form(PICTURE, PICTURE), None, 400, "No valid image file found"),
    "confidence as words": (DETECTION, form(PICTURE, min_confidence="high"), None, 400, "min_confidence: 'high'"),
    "no number": (DETECTION, form(PICTURE, min_confidence="nan"), None, 400, "min_confidence: 'nan'"),
    "above 1": (DETECTION, form(PICTURE, min_confidence="40"), None, 400, "expected a number from 0 to 1"),
    "limit": (DETECTION + "?limit=1e9", form(PICTURE), None, 400, "limit is '1e9'"),
    "a field that is long": (DETECTION, form(PICTURE, min_confidence="0" * 513), None, 400, "at most 512"),
    "many parts": (DETECTION, form(*[PICTURE] * 17), None, 400, "more than 16 parts"),
    "cut off": (DETECTION, form(PICTURE)[:-30], None, 400, "before its last boundary"),
    "another boundary": (DETECTION, form(PICTURE).replace(b"abcdef", b"fedcba"), None, 400, "not the boundary"),
    "no boundary": (DETECTION, form(PICTURE), {"Content-Type": "multipart/form-data"}, 400, "multipart/form-data"),
    "JSON": (DETECTION, b"{}", {"Content-Type": "application/json"}, 400, "multipart/form-data"),
    "a picture alone": (DETECTION, PICTURE, {"Content-Type": "image/jpeg"}, 400, "multipart/form-data"),
    "nothing": (DETECTION, b"", {}, 400, "No valid image file found"),
    "a name that is missing": (
        DETECTION, form(PICTURE).replace(b'name="image"; file', b"file"), None, 400, "Content-Disposition with a name",
    ),
    "unknown model": ("/v1/vision/custom/nope", form(PICTURE), None, 404, "unknown model: 'nope'"),
    "a path for a model": ("/v1/vision/custom/..%2fx", form(PICTURE), None, 404, "unknown model: '../x'"),
    "a model without boxes": ("/v1/vision/custom/echo", form(PICTURE), None, 400, "Models that find boxes: finder"),
    **{name: (DETECTION, form(data), None, 400, "") for name, data in BAD.items()},
}  # fmt: skip


async def test_what_is_wrong_is_stated(front: rest_front.Front) -> None:
    """Each wrong call has its status, and a body that says what was wrong as DeepStack's does; others are served."""
    for name, (path, body, headers, wanted, words) in WRONG.items():
        status, found = await send(front, path, body, headers)
        assert (status, found["success"], found.keys()) == (wanted, False, {"success", "error"}), (name, found)
        assert words in found["error"], (name, found)
    reply = await front("GET", DETECTION)
    assert (reply.status, reply.json["success"]) == (405, False)
    assert (await send(front, DETECTION, form(PICTURE)))[0] == 200


@pytest.mark.options(http_max_input_size=1 << 16)
async def test_a_huge_picture(front: rest_front.Front) -> None:
    """One above the bound is refused before it is read, also where it does not state its size."""
    body = form(bytes(1 << 17))
    assert (await send(front, DETECTION, body))[0] == 400

    async def chunks() -> Any:
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]

    async with front.session.post(front.url + DETECTION, data=chunks(), headers=HEADERS) as reply:
        assert (reply.status, (await reply.json())["success"]) == (400, False)


async def test_the_key_is_a_field_of_the_form(open_core: OpenCore, tmp_path: Path) -> None:
    """It is that of the file of keys, in a body of 4 MiB at most; with the header larger ones are read."""
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[ann]\nkey = "{KEY}"\nrights = ["infer"]\n[bob]\nkey = "{KEY}-bob"\nrights = ["metadata"]\n')
    large = form(LARGE, api_key=KEY)
    assert len(large) > 4 << 20
    access = Access(KeyFile(keys, GRANTED))
    async with rest_front.serving(open_core, access) as front:
        for body, wanted, words in (
            (form(PICTURE, api_key=KEY), 200, ""),
            (form(PICTURE), 401, "the field api_key"),
            (form(PICTURE, api_key=""), 401, "the field api_key"),
            (form(PICTURE, api_key="wrong"), 401, "Incorrect api key"),
            (form(PICTURE, api_key=f"{KEY}-bob"), 403, "no right to inference"),
            (large, 400, "at most 4194304 unless the header"),
        ):
            status, found = await send(front, DETECTION, body)
            assert (status, words in found.get("error", "")) == (wanted, True), found
        bearer = {**HEADERS, "Authorization": f"Bearer {KEY}"}
        assert (await send(front, DETECTION, large, bearer))[0] == 200
        assert (await send(front, DETECTION, form(PICTURE), {**bearer, "Authorization": "Bearer no"}))[0] == 401
        assert (await front("GET", "/v1/vision/custom/list")).status == 401
        assert (await send(front, "/v1/vision/custom/list", form(api_key=KEY)))[1]["models"] == ["finder"]
        assert access.refused == {"unauthenticated": 5, "not_authorized": 1}
        assert front.core.arriving.bytes == 0


@pytest.mark.parametrize(("chosen", "words"), [("echo", "model 'echo' finds no boxes"), ("nope", "model 'nope'")])
async def test_a_chosen_model_that_finds_no_boxes(open_core: OpenCore, chosen: str, words: str) -> None:
    """The call without a model is not activated, as DeepStack has it, and the others are."""
    async with rest_front.serving(open_core, detection_model=chosen) as front:
        status, found = await send(front, DETECTION, form(PICTURE))
        assert (status, words in found["error"], "Models that find boxes: finder" in found["error"]) == (
            403,
            True,
            True,
        )
        assert (await send(front, CUSTOM, form(PICTURE)))[0] == 200


def test_forms_of_other_programs() -> None:
    """A preamble, names without quotes, other headers and no last line's end; and noise, which is refused or read."""
    body = (
        b"preamble\r\n--b 1\r\nContent-Type: x\r\ncontent-disposition: form-data; filename=a;name=image\r\n\r\n"
        b'\r\n--b\r\n\r\n--b 1\r\nContent-Disposition: form-data; filename="; name=q"; name="api_key"\r\n\r\nk\r\n'
        b"--b 1--"
    )
    found = read_form('Multipart/Form-Data; charset=x; boundary="b 1"', body)
    assert (found.pictures, found.fields) == ((b"\r\n--b\r\n",), {"api_key": "k"})
    whole = form(PICTURE, api_key="k", min_confidence="0.5")
    for place in range(0, len(whole), 3):
        for broken in (
            whole[:place],
            whole[place:],
            whole[:place] + b"\r\n--" + whole[place:],
            whole[:place] + whole[place + 9 :],
        ):
            with suppress(BadEnvelope):
                read_form(HEADERS["Content-Type"], broken)
