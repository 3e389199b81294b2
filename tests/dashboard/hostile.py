"""Messages that no party of good will sends; each function publishes one kind, and returns nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from mqinfer.codecs import encode_tensor
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.envelope import encode_response
from mqinfer.protocol.types import Capture, EncodedTensor, ErrorInfo, InferResponse, Outcome
from tests.dashboard.publishing import Publisher, Stream

__all__ = ["ATTACKS", "COUNTED", "MARK", "MARKUP", "NAMES", "markup_of"]

MARK = "hostile-mark"
"""Class of the elements that markup would make."""
MARKUP = f"<img class={MARK} src=x onerror='window.executed=1'><script>window.executed=1</script>\"'>{{{{7*7}}}}"
NAMES = ("__proto__", "constructor", "toString", "hasOwnProperty")
"""Names that models, and fields of maps, may have, and that objects of JavaScript have without asking."""
_BIG = (1 << 63) - 1
_STREAM = Stream("mallory", "front", "numbers")
_MASK = encode_tensor("output", np.zeros((64, 96), np.uint8), "mask")


def markup_of(url: str) -> str:
    """Return markup with a link that a page must not follow."""
    return f"{MARKUP}<a class={MARK} href='javascript:window.executed=1'>{url}</a>"


def html_in_results(publisher: Publisher) -> None:
    """Results whose every string is markup: capture, version, hash, worker, error, parameters, tensors."""
    text = markup_of("http://198.51.100.1/")
    response = InferResponse(
        "0" * 32,
        "numbers",
        text,
        outputs=(replace(_MASK, name=text, parameters={text: text}),),
        model_hash=text,
        worker=text,
        stage=text,
        capture=Capture(text, 1, 2, text),
        parameters={text: text, "fallback": text},
    )
    failed = replace(response, outcome=Outcome.ERROR, outputs=(), error=ErrorInfo(text, text))
    for each in (response, failed, replace(failed, error=ErrorInfo("bad_tensor", text)), replace(response, id=text)):
        publisher.send(publisher.topics.result("numbers", "mallory", "0" * 32), encode_response(each))
    for topic in (f"results/{MARKUP}/mallory/1", f"results/numbers/{MARKUP}/1", f"results/numbers/mallory/{MARKUP}"):
        publisher.send(f"{publisher.topics.root}/{topic.replace('/script', '')}", encode_response(response))


def html_in_what_is_retained(publisher: Publisher) -> None:
    """Card and states with markup in every string."""
    text, root = markup_of("http://198.51.100.1/"), publisher.topics.root
    parameters = {
        **dict.fromkeys(("version", "model_hash", "precision", "backend", "device"), text),
        "encodings": [text],
        "classes": [{"name": text, "colour": [1, 2, 3]}],
        "labels": {text: text},
        "traffic": {text: 5},
    }
    spec = [{"name": text, "datatype": "FP32", "shape": [-1]}]
    card = {
        "name": "evil",
        "platform": text,
        "versions": [text],
        "inputs": spec,
        "outputs": spec,
        "parameters": parameters,
    }
    worker = {
        "worker": "evil", "status": "ready", "boot": 1, "capacity": 1, "counters": {text: 1},
        "models": [{"name": "evil", "version": text, "device": text, "backend": text, "precision": text}],
    }  # fmt: skip
    stream = {"source": text, "model": text, "outcomes": {text: 1}, "dropped": {text: 1}, "rate": 1}
    client = {"client": "evil", "status": "ready", "boot": 1, "source": text, "model": "evil", "streams": [stream]}
    wrong = card | {"name": "wrong", "parameters": {"classes": [{"name": text, "colour": text}]}}
    for topic, body in (
        ("models/evil/card", card),
        ("models/wrong/card", wrong),
        ("workers/evil/state", worker),
        ("clients/evil/state", client),
    ):
        publisher.send(f"{root}/{topic}", json.dumps(body).encode(), retain=True, qos=1)


def html_in_previews(publisher: Publisher) -> None:
    """Previews that are no JPEG, or say that they are larger than they are, or come as SVG."""
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' onload='window.executed=1'>{MARKUP}</svg>".encode()
    bomb = bytearray(encode_tensor("preview", np.zeros((8, 8, 3), np.uint8), "jpeg").data)
    at = bomb.index(b"\xff\xc0")
    bomb[at + 5 : at + 9] = b"\xff\xff\xff\xff"  # claims 65,535 pixels each way
    for number, (data, shape) in enumerate(
        ((svg, (8, 8, 3)), (bytes(bomb), (8, 8, 3)), (bytes(bomb), (65535, 65535, 3)))
    ):
        picture = EncodedTensor("preview", Datatype.UINT8, shape, "jpeg", data)
        publisher.preview(_STREAM, number, picture, (1 << 40, 1))
        publisher.result(_STREAM, number, _MASK)


def huge_masks(publisher: Publisher) -> None:
    """Masks, raw and compressed tensors that claim 100 GB in a few bytes."""
    for encoding in ("mask", "raw", "lz4", "shuffle-lz4", "jpeg", "png"):
        for shape in ((300_000, 350_000), (1, 1 << 20, 1 << 20), (_BIG, _BIG), (0, _BIG)):
            claim = EncodedTensor("output", Datatype.UINT8, shape, encoding, bytes(_MASK.data))
            publisher.result(_STREAM, 5, claim)


def many_user_properties(publisher: Publisher) -> None:
    """10,000 user properties on one message, names of JavaScript's own among them."""
    response = InferResponse("0" * 32, "numbers", outputs=(_MASK,), capture=_STREAM.capture(6))
    properties = [(f"key-{number}", "value") for number in range(9_990)] + [(name, name) for name in NAMES]
    topic = publisher.topics.result("numbers", "mallory", "0" * 32)
    for more in ([], [], [("xxh3", "wrong")]):
        publisher.send(topic, encode_response(response), properties=properties + more)


def many_streams(publisher: Publisher) -> None:
    """2,000 streams of 200 clients, and as many models and workers in the results' own words."""
    for number in range(2_000):
        stream = Stream(f"many-{number % 200}", f"/camera/{number}", f"model-{number % 500}", f"worker-{number}")
        publisher.result(stream, number, _MASK)


def broken_payloads(publisher: Publisher) -> None:
    """Results, previews, cards and states of random bytes, cut ones, and ones with flipped bits."""
    draw = random.Random(7)  # noqa: S311 - repeats
    response = InferResponse("0" * 32, "numbers", outputs=(_MASK,), capture=_STREAM.capture(7))
    good, root = encode_response(response), publisher.topics.root
    topics = (
        publisher.topics.result("numbers", "mallory", "0" * 32),
        f"{root}/clients/mallory/preview/front",
        f"{root}/models/junk/card",
        f"{root}/workers/junk/state",
        f"{root}/clients/junk/state",
    )
    for _ in range(100):
        flipped = bytearray(good)
        for _ in range(3):
            flipped[draw.randrange(len(good))] ^= 1 << draw.randrange(8)
        for topic in topics:
            for payload in (draw.randbytes(draw.randrange(300)), good[: draw.randrange(len(good))], bytes(flipped)):
                publisher.send(topic, payload)


def names_of_objects(publisher: Publisher) -> None:
    """Models, fields and counters with the names that every object of JavaScript has."""
    root = publisher.topics.root
    own = dict.fromkeys(NAMES, 1)
    for name in NAMES:
        publisher.result(Stream("mallory", name, name, name), 1, replace(_MASK, parameters=own), parameters=own)
        publisher.card(name, [], labels=dict.fromkeys(NAMES, "1"))
        stream = {"source": name, "model": name, "outcomes": own, "dropped": own}
        client = {"client": "objects", "status": "ready", "boot": 1, "streams": [stream], "__proto__": {"polluted": 1}}
        publisher.send(f"{root}/clients/objects/state", json.dumps(client).encode(), retain=True)
        worker = {"worker": "objects", "status": "ready", "boot": 1, "counters": own, "models": [{"name": name}]}
        publisher.send(f"{root}/workers/objects/state", json.dumps(worker).encode(), retain=True)


def huge_numbers(publisher: Publisher) -> None:
    """Numbers at and beyond every bound, in results and states."""
    for sequence in (0, _BIG, (1 << 53) + 1, 3):
        capture = Capture("front", sequence, -_BIG)
        response = InferResponse("0" * 32, "numbers", outputs=(_MASK,), capture=capture)
        timed = replace(response, timings=replace(response.timings, inference=_BIG, server_queue=_BIG))
        publisher.send(publisher.topics.result("numbers", "mallory", "0" * 32), encode_response(timed))
    for number in ("1e400", "-1", str(_BIG), "1" + "0" * 300, "NaN", '"5"', "null", "[]"):
        worker = '{"worker": "huge", "status": "ready", "boot": 1, "depth": %s, "service_time_us": %s, "capacity": %s}'
        publisher.send(f"{publisher.topics.root}/workers/huge/state", (worker % ((number,) * 3)).encode(), retain=True)
        client = (
            '{"client": "huge", "status": "ready", "boot": 1, "streams": [{"source": "a", "rate": %s, "window": %s}]}'
        )
        publisher.send(f"{publisher.topics.root}/clients/huge/state", (client % ((number,) * 2)).encode(), retain=True)


def retained_junk(publisher: Publisher) -> None:
    """3,000 retained states of workers, clients and models, and some that are as large and deep as can be."""
    root = publisher.topics.root
    for number in range(1_000):
        publisher.worker(f"junk-{number}", f"model-{number}")
        publisher.client(f"junk-{number}", source="x" * 1000)
        publisher.card(f"junk-{number}")
    deep = b"[" * 30_000 + b"]" * 30_000
    wide = json.dumps({str(number): number for number in range(5_000)}).encode()
    many: dict[str, Any] = {"client": "wide", "status": "ready", "boot": 1}
    many["streams"] = [{"source": str(number), "model": "m"} for number in range(800)]
    for kind, payload in (
        ("deep", deep),
        ("wide", wide),
        ("wide", json.dumps(many).encode()),
        ("large", b"x" * (1 << 21)),
    ):
        for topic in (f"workers/{kind}/state", f"clients/{kind}/state", f"models/{kind}/card"):
            publisher.send(f"{root}/{topic}", payload, retain=True, qos=1)


ATTACKS: dict[str, Callable[[Publisher], None]] = {
    each.__name__: each
    for each in (
        html_in_results, html_in_what_is_retained, html_in_previews, huge_masks, many_user_properties, many_streams,
        broken_payloads, names_of_objects, huge_numbers, retained_junk,
    )
}  # fmt: skip
COUNTED = {
    "html_in_what_is_retained", "huge_masks", "many_user_properties", "many_streams", "broken_payloads",
    "huge_numbers", "retained_junk",
}  # fmt: skip
"""Attacks of which a page must count what it left out."""
