"""A picture as it is: the file of a JPEG or PNG as a request, without any envelope, and the answer to it in words.

For whatever can publish a file and read JSON: `mosquitto_rr`, cameras, automations. What the requests of others state
in a header comes from the message's properties here and, over MQTT 3.1.1, which has none, from convention.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan

from msgspec.structs import asdict

from mqinfer.answers.answer import PictureAnswer
from mqinfer.answers.outputs import MOST_BOXES
from mqinfer.answers.words import describe_answer, describe_outputs, document
from mqinfer.broker.link import Message
from mqinfer.images.placement import Placement
from mqinfer.images.sending import offer_contract, picture_file
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadEncoding, BadTensor, InvalidRequest
from mqinfer.protocol.topics import InferAddress
from mqinfer.protocol.types import InferRequest, InferResponse

TIMEOUT_S = 30
"""A picture without a Message Expiry Interval expires after this: nobody waits for its answer longer."""
STREAM = "picture"
"""Last level of the topic of answers where a sender states none."""
_MIN_SCORE, _MAX_DETECTIONS = "min_score", "max_detections"
"""User properties: what the answer lists of the objects."""


Wanted = tuple[float, int]
"""What an answer lists of the objects: those of this score or above, and at most so many, the best first."""
EVERYTHING: Wanted = 0.0, MOST_BOXES


def read_wanted(message: Message) -> Wanted:
    """Return what a picture's message asks for.

    Raises:
        InvalidRequest: A user property is no such number.
    """
    stated = dict(message.user_properties)
    try:
        least, most = float(stated.get(_MIN_SCORE, 0.0)), int(stated.get(_MAX_DETECTIONS, MOST_BOXES))
        if isnan(least):
            raise ValueError("not a number")  # noqa: TRY301 - as `float` does
    except ValueError as error:
        raise InvalidRequest(
            f"user property {_MIN_SCORE} or {_MAX_DETECTIONS}: {error}; expected numbers such as 0.5 and 10"
        ) from error
    return least, min(max(most, 0), MOST_BOXES)


def read_picture(message: Message, address: InferAddress, card: ModelCard | None) -> InferRequest:
    """Return the request that a picture stands for; its file is not decoded yet.

    Raises:
        BadTensor: The model takes no pictures.
        BadEncoding: The bytes are neither JPEG nor PNG.
    """
    contract = None if card is None else card.image
    if card is None or contract is None:
        raise BadTensor("this model takes no pictures" if card is None else offer_contract(card))
    try:
        tensor = picture_file(contract.input, message.payload)
    except BadEncoding as error:
        raise BadEncoding(f"{len(message.payload)} bytes: {error}; expected a JPEG or PNG") from error
    seconds = TIMEOUT_S if message.expiry_s is None else message.expiry_s
    request_id = (message.correlation_data or b"").hex()
    return InferRequest(request_id, address.model, (tensor,), address.version, timeout_us=seconds * 1_000_000)


def write_words(
    request: InferRequest, response: InferResponse, arrays: Mapping[str, Array], card: ModelCard, wanted: Wanted
) -> bytes:
    """Return a reply to a picture in words, as `answer.schema.json` describes it.

    Args:
        request: What `read_picture` has returned; without inputs where it has failed.
        response: The reply, without outputs.
        arrays: The outputs.
        card: Of the model.
        wanted: What it lists.

    Raises:
        MissingExtra: OpenCV is not installed, and objects have masks.
    """
    stages = {stage: took for stage, took in asdict(response.timings).items() if took}
    described: dict[str, object] = {
        "id": request.id,
        "outcome": response.outcome.value,
        "model_name": response.model_name,
        "model_version": response.model_version,
        "model_hash": response.model_hash,
        "worker": response.worker,
        "stage": response.stage,
        "error": asdict(response.error) if response.error else None,
        "times": {"total": response.timings.server, "stages": stages},
    }
    if arrays and card.image is not None:
        height, width = request.inputs[0].shape[1:3]
        answer = PictureAnswer(arrays, Placement.in_model(card.image, width, height), card.classes)
        picture = answer.placement.picture
        described |= {"width": width, "height": height}
        least, most = wanted
        described |= describe_answer(answer, min_score=least, most=most)
        described["outputs"] = describe_outputs(arrays, card.classes, answer.shares, picture)
    return document(described)[0]
