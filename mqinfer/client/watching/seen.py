"""What a watch yields, what it counts, and how a message becomes one. Pure: no thread, no link.

A message is read on the thread of whoever takes it, never on the link's: its checksum, its header, and whether its
topic and payload agree. The tensors are decoded only when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from mqinfer.broker.link import Message
from mqinfer.client.result import InferResult
from mqinfer.codecs import decode_outputs, decode_tensor
from mqinfer.protocol import envelope, header, oip_json
from mqinfer.protocol.checksum import CHECKSUM, verify
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadTensor, BadTopic, Corrupted, MqinferError
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.topics import CONTROL, Topics, check_name, check_same
from mqinfer.protocol.types import EncodedTensor, ErrorInfo, InferResponse, Outcome
from mqinfer.value_object import value_object

PREVIEW_BYTES = 256 << 10
"""Largest message with a preview; larger ones are dropped."""
PREVIEW_LIMITS = Limits(payload_bytes=PREVIEW_BYTES, tensors=1, tensor_bytes=3 << 20, image_pixels=1 << 20)
"""Bounds of a preview, which is at most 480 pixels wide."""
_WIDEST = 1 << 16
"""Longest side of a model's picture, in pixels."""
_ENTRY_BYTES = 512
"""What a message takes in memory beside its payload and properties, about."""
_KEPT = frozenset((CHECKSUM, oip_json.HEADER_LENGTH))


class DropReason(StrEnum):
    """Why a watch drops a message."""

    OVERFLOW = "overflow"
    """It was the oldest of those that nobody had taken, and there was no room for a newer one."""
    TOO_LARGE = "too_large"
    """It is larger than the whole buffer, or a preview than previews may be."""
    RETAINED = "retained"
    """The broker had kept it: it is of an earlier time."""
    CORRUPTED = "corrupted"
    """Its checksum differs: bits flipped on the way."""
    UNREADABLE = "unreadable"
    """It breaks the protocol or a limit."""
    TOPIC_MISMATCH = "topic_mismatch"
    """Its topic breaks the rules, or names another model or request than its payload."""


@dataclass(frozen=True, slots=True)
class WatchCounters:
    """What became of the messages of a watch.

    `received == yielded + ignored + buffered + sum(dropped.values())` holds at any time.

    Attributes:
        received: Messages that came.
        yielded: Results and previews that the caller took.
        ignored: Messages that are of no interest: replies of servers to operators, previews of other models.
        buffered: Messages that nobody has taken yet.
        buffered_bytes: What these take in memory.
        dropped: Messages by reason, without reasons that have none.
        disconnected: How often the connection was lost; nothing came until it was back.
    """

    received: int
    yielded: int
    ignored: int
    buffered: int
    buffered_bytes: int
    dropped: Mapping[DropReason, int]
    disconnected: int


class Arrival(Struct, frozen=True, eq=False):
    """A message as it came, not read yet.

    Attributes:
        message: Without the properties that nothing here reads.
        received_ns: When it came, in nanoseconds since the epoch.
        size: What it takes in memory, about, in bytes.
    """

    message: Message
    received_ns: int
    size: int


@value_object(eq=False)
class SeenResult:
    """The reply that a worker sent to a client.

    Attributes:
        client: Who had asked, from the topic.
        request_id: Of the request.
        response: The reply; its tensors are as they travelled.
        received_ns: When it came here, in nanoseconds since the epoch.
        limits: Bounds of what its tensors may take.
    """

    client: str
    request_id: str
    response: InferResponse
    received_ns: int
    limits: Limits = DEFAULT_LIMITS

    def decode(self) -> InferResult:
        """Decode the tensors, and return the result as the client has it; each call decodes anew.

        A reply whose tensors can't be decoded has the outcome `error` and the error's code. Of the timings the worker's
        part alone is known.
        """
        outputs, problem = decode_outputs(self.response, self.limits)
        reply = self.response
        return InferResult(
            id=reply.id,
            outcome=reply.outcome if problem is None else Outcome.ERROR,
            model_name=reply.model_name,
            model_version=reply.model_version,
            model_hash=reply.model_hash,
            outputs=outputs,
            error=reply.error if problem is None else ErrorInfo(problem.code, str(problem)),
            worker=reply.worker,
            stage=reply.stage,
            timings=reply.timings,
            capture=reply.capture,
            attempts=reply.attempt,
            parameters=reply.parameters,
        )


@value_object(eq=False)
class SeenPreview:
    """A small picture of a frame that an edge sent to a model.

    It shows the picture that the model got. The result of the same frame has the same client, and the same source and
    sequence in its `capture`.

    Attributes:
        client: Who publishes it, from the topic.
        response: The message: `capture`, `model_name`, and the picture as its only tensor.
        picture: Width and height of the picture that the model got, in pixels.
        received_ns: When it came here, in nanoseconds since the epoch.
    """

    client: str
    response: InferResponse
    picture: tuple[int, int]
    received_ns: int

    @property
    def tensor(self) -> EncodedTensor:
        """The picture as a JPEG: its bytes are `tensor.data`, its height and width the first entries of the shape."""
        return self.response.outputs[0]

    def decode(self) -> Array:
        """Decode the picture: RGB, UINT8 `[height, width, 3]`; each call decodes anew.

        Raises:
            BadEncoding: It is no JPEG, or not of the stated size.
            MissingExtra: OpenCV is not installed.
        """
        return decode_tensor(self.tensor, PREVIEW_LIMITS)


def arrival_of(message: Message, received_ns: int) -> Arrival:
    """Return a message as it is buffered; what nothing here reads of it is left out, and takes no memory."""
    kept = tuple(each for each in message.user_properties if each[0] in _KEPT)
    size = _ENTRY_BYTES + memoryview(message.payload).nbytes + sum(len(name) + len(value) + 128 for name, value in kept)
    slim = Message(
        message.topic, message.payload, retain=message.retain, content_type=message.content_type, user_properties=kept
    )
    return Arrival(slim, received_ns, size)


def drop_reason(error: MqinferError) -> DropReason:
    """Return under which reason a message that can't be read counts."""
    if isinstance(error, Corrupted):
        return DropReason.CORRUPTED
    return DropReason.TOPIC_MISMATCH if isinstance(error, BadTopic) else DropReason.UNREADABLE


class Reader:
    """Reads the messages of one site.

    Args:
        topics: Below the root of the site.
        model: Whose results and previews count; None for those of all models.
        limits: Bounds of what a reply may contain.
    """

    def __init__(self, topics: Topics, model: str | None, limits: Limits) -> None:
        self._topics, self._model, self._limits = topics, model, limits
        self._control = f"{topics.root}/results/{CONTROL}/"
        self._previews = f"{topics.root}/clients/"

    def result_filter(self, client: str | None) -> str:
        """Return the filter for the results of one client, or of all."""
        model = "+" if self._model is None else check_name("model", self._model)
        return f"{self._topics.root}/results/{model}/{_or_all(client)}/+"

    def preview_filter(self, client: str | None) -> str:
        """Return the filter for the previews of one client, or of all."""
        return self._topics.previews.filter().replace("+", _or_all(client), 1)

    def refuse(self, arrival: Arrival) -> DropReason | None:
        """Return why a message is dropped before it is buffered; None if it is not."""
        if arrival.message.retain:
            return DropReason.RETAINED
        is_large = self._is_preview(arrival.message) and memoryview(arrival.message.payload).nbytes > PREVIEW_BYTES
        return DropReason.TOO_LARGE if is_large else None

    def is_control(self, topic: str) -> bool:
        """Return whether a message is a server's reply to an operator: the filter for all models covers these too."""
        return topic.startswith(self._control)

    def read(self, arrival: Arrival) -> SeenResult | SeenPreview | None:
        """Read a message; None for a preview of another model.

        Raises:
            Corrupted: The payload is not what was sent.
            BadTopic: Topic and payload don't agree, or the topic breaks the rules.
            InvalidRequest: The payload breaks the protocol or a limit.
        """
        message = arrival.message
        verify(message.payload, message.user_properties)
        return self._read_preview(arrival) if self._is_preview(message) else self._read_result(arrival)

    def _is_preview(self, message: Message) -> bool:
        return message.topic.startswith(self._previews)

    def _read_result(self, arrival: Arrival) -> SeenResult:
        names = self._topics.result.parse(arrival.message.topic)
        reply = _decode(arrival.message, self._limits)
        check_same("model", names["model"], reply.model_name)
        check_same("request", names["request"], reply.id)
        return SeenResult(names["client"], names["request"], reply, arrival.received_ns, self._limits)

    def _read_preview(self, arrival: Arrival) -> SeenPreview | None:
        client = self._topics.previews.parse(arrival.message.topic)["client"]
        reply = envelope.decode_response(arrival.message.payload, PREVIEW_LIMITS)
        if self._model is not None and reply.model_name != self._model:
            return None
        return SeenPreview(client, reply, _picture_of(reply), arrival.received_ns)


def _or_all(client: str | None) -> str:
    return "+" if client is None else check_name("client", client)


def _decode(message: Message, limits: Limits) -> InferResponse:
    """Decode a reply in the form that its client had asked for."""
    if not header.is_json(message.content_type, message.payload):
        return envelope.decode_response(message.payload, limits)
    return oip_json.decode_response(message.payload, oip_json.header_length(message.user_properties), limits)


def _picture_of(reply: InferResponse) -> tuple[int, int]:
    """Check the tensor of a preview, and return the size of the picture that the model got."""
    if len(reply.outputs) != 1 or reply.capture.sequence is None:
        raise BadTensor("a preview has one tensor, and the sequence number of its frame")
    tensor = reply.outputs[0]
    is_picture = tensor.datatype is Datatype.UINT8 and len(tensor.shape) == 3 and tensor.shape[2] == 3
    if not is_picture or tensor.encoding != "jpeg":
        raise BadTensor("a preview is a JPEG of the datatype UINT8 and the shape [height, width, 3]")
    return _side_of(reply, "picture_width"), _side_of(reply, "picture_height")


def _side_of(reply: InferResponse, name: str) -> int:
    side = reply.parameters.get(name)
    if type(side) is int and 0 < side <= _WIDEST:
        return side
    raise BadTensor("a preview states the size of the model's picture as picture_width and picture_height")
