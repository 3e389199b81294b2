"""The calls: detection by a model of the gateway's choice or the caller's, and the names of those models."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web
from msgspec.structs import replace as changed

from mqinfer.answers.outputs import DetectedBox
from mqinfer.client.result import InferResult, PictureResult
from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.calls import InferCall
from mqinfer.gateway.core import Core
from mqinfer.gateway.deepstack.forms import PICTURE, Form, read_form
from mqinfer.gateway.errors import NotActivated, Unauthenticated
from mqinfer.gateway.http import AdmittedCall, Bodies, Endpoint, error_reply, json_reply, peer_of
from mqinfer.gateway.pictures import ENCODING
from mqinfer.images.sending import PictureInput, picture_tensor
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import BadTensor, InvalidRequest, LimitExceeded, MqinferError
from mqinfer.protocol.types import RequestedOutput

_log = logging.getLogger("mqinfer.gateway")

_UNKNOWN_CALLER, _UNKNOWN_BYTES = "without a key", 4 << 20
"""Callers whose key can only be in the body: they share the bounds of one while it arrives; and its bytes at most."""
MOST = 20
"""Objects of an answer unless a caller asks for more: Frigate's detectors have room for as many."""
_MIN_CONFIDENCE = "0.4"
"""DeepStack's default."""
_LIMIT = re.compile("[1-9][0-9]?|100", re.ASCII)
_BOXES = ("boxes", "scores", "classes", "count")
"""Outputs that objects are read from; the first two make a model one that detects."""


def deepstack_routes(core: Core, access: Access, bodies: Bodies, chosen: str) -> list[Endpoint]:
    """Return the routes; they admit their callers themselves, whose key may be in the body.

    Args:
        core: Answers the calls.
        access: Decides who may call.
        bodies: Reads the bodies.
        chosen: The model of `/v1/vision/detection`; empty for the only one that finds boxes.
    """
    detector = Detecting(core, chosen)
    calls = _Calls(detector, access, bodies)
    try:
        _log.info("DeepStack's /v1/vision/detection asks model '%s'", detector.default())
    except NotActivated as error:
        _log.info("DeepStack's /v1/vision/detection: %s", error)

    def route(pattern: str, **methods: Any) -> Endpoint:
        return Endpoint(re.compile(pattern), Right.HEALTH, methods, partial(error_reply, success=False))

    return [
        route("/v1/vision/detection/?", POST=calls.detect),
        route("/v1/vision/custom/list/?", GET=calls.models, POST=calls.models),
        route("/v1/vision/custom/([^/]+)/?", POST=calls.detect),
    ]


class Detecting:
    """Asks models for the objects in pictures, whichever way these come.

    Args:
        core: Answers the calls.
        chosen: The model of a call that names none; empty for the only one that finds boxes.
    """

    def __init__(self, core: Core, chosen: str) -> None:
        self._core, self._chosen = core, chosen

    async def ask(self, model: str, picture: PictureInput, caller: str, **further: Any) -> PictureResult:
        """Return what a model finds in a picture; without a name, the default one.

        Raises:
            MqinferError: Whatever came of it.
        """
        card = await self._core.metadata(model or self.default())
        if not _detects(card):
            raise BadTensor(f"model '{card.name}' finds no boxes in a picture; {self._known()}")
        try:
            tensor, placement = picture_tensor(picture, card.pictures[0])
        except MqinferError as error:
            self._core.inference.count(card.name, error)
            raise
        tensor = changed(tensor, parameters={**tensor.parameters, ENCODING: tensor.encoding})
        wanted = tuple(RequestedOutput(each.name) for each in card.outputs if each.name in _BOXES)
        call = InferCall(card.name, inputs=(tensor,), outputs=wanted, caller=caller, **further)
        return PictureResult(await self._core.infer(call), placement, card.classes)

    def default(self) -> str:
        """Return the model of a call that names none.

        Raises:
            NotActivated: There is none, or several.
        """
        found = self.models()
        model = found[0] if len(found) == 1 and not self._chosen else self._chosen
        if model in found:
            return model
        which = f"model '{self._chosen}' finds no boxes here" if self._chosen else "no model is chosen"
        raise NotActivated(f"Detection endpoint not activated: {which}; set --detection-model. {self._known()}")

    def models(self) -> list[str]:
        """Return the models that find boxes."""
        cards = self._core.client.connection.registry.known.cards
        return sorted(name for name, card in cards.items() if _detects(card))

    def _known(self) -> str:
        return f"Models that find boxes: {', '.join(self.models()) or 'none'}"


class _Calls:
    """Handlers of the paths."""

    def __init__(self, detector: Detecting, access: Access, bodies: Bodies) -> None:
        self._detector, self._access, self._bodies = detector, access, bodies

    async def models(self, call: AdmittedCall) -> web.Response:
        async with self._form(call):
            return json_reply({"success": True, "models": self._detector.models()})

    async def detect(self, call: AdmittedCall) -> web.Response:
        began, limit = time.perf_counter(), call.request.query.get("limit", str(MOST))
        if not _LIMIT.fullmatch(limit):
            raise InvalidRequest(f"limit is {limit[:40]!r}; expected a number from 1 to 100")
        async with self._form(call) as (caller, form):
            least, picture = _least(form), _picture(form)
            found = await self._detector.ask(call.parts[0] if call.parts else "", picture, caller, **call.trace)
        chosen = [_prediction(each) for each in found.detections if each.score >= least][: int(limit)]
        return json_reply(_answer(chosen, found.result, time.perf_counter() - began))

    @asynccontextmanager
    async def _form(self, call: AdmittedCall) -> AsyncIterator[tuple[str, Form]]:
        """Yield who calls, and the form; of a caller whose key can only be in the form, a small one is read."""
        request, headers, most = call.request, call.request.headers, None
        peer, certificate = peer_of(request)
        if self._access.lacks_key(headers, certificate):
            caller, most = _UNKNOWN_CALLER, _UNKNOWN_BYTES
            if (request.content_length or 0) > most:
                raise LimitExceeded(
                    f"{request.content_length} bytes; at most {most} unless the header 'Authorization' has the key"
                )
        else:
            caller = self._access.admit(Right.INFERENCE, headers, peer, certificate=certificate)
        async with self._bodies.read(replace(call, caller=caller), most) as body:
            form = read_form(headers.get("Content-Type", ""), body)
            yield self._admit(request, form, peer) if most else caller, form

    def _admit(self, request: web.Request, form: Form, peer: str) -> str:
        headers = request.headers.copy()
        if key := form.fields.get("api_key", "").strip():
            headers["Authorization"] = f"Bearer {key}"
        try:
            return self._access.admit(Right.INFERENCE, headers, peer)
        except Unauthenticated as error:
            raise Unauthenticated(f"Incorrect api key: {error}, or the field api_key") from error


def _detects(card: ModelCard) -> bool:
    outputs = {each.name for each in card.outputs}
    return len(card.inputs) == len(card.pictures) == 1 and outputs.issuperset(_BOXES[:2])


def _least(form: Form) -> float:
    text = form.fields.get("min_confidence", "").strip() or _MIN_CONFIDENCE
    with suppress(ValueError):
        if 0.0 <= (found := float(text)) <= 1.0:
            return found
    raise InvalidRequest(f"Invalid value for min_confidence: {text[:40]!r}; expected a number from 0 to 1")


def _picture(form: Form) -> bytes:
    if len(form.pictures) != 1 or not form.pictures[0]:
        sizes = [len(each) for each in form.pictures]
        raise InvalidRequest(f"No valid image file found: field '{PICTURE}' has files of {sizes} bytes; expected one")
    return form.pictures[0]


def _prediction(found: DetectedBox) -> dict[str, Any]:
    sides = dict(zip(("x_min", "y_min", "x_max", "y_max"), map(round, found.box), strict=True))
    return {"label": found.name or "object", "confidence": round(found.score, 6), **sides}


def _answer(predictions: list[dict[str, Any]], result: InferResult, elapsed_s: float) -> dict[str, Any]:
    """Return an answer with the fields of both servers; times are DeepStack's seconds and CodeProject.AI's ms."""
    return {
        "success": True,
        "predictions": predictions,
        "count": len(predictions),
        "duration": round(elapsed_s, 6),
        "inferenceMs": round(result.timings.inference / 1e6),
        "processMs": round(result.timings.server / 1e6),
        "analysisRoundTripMs": round(elapsed_s * 1e3),
        "code": 200,
    }
