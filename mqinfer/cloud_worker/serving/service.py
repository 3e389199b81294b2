"""Inference without a transport: from a request to its outputs. The MQTT worker only translates to and from it.

The checks go from cheap to costly: names, then declared shape and datatype against the model, then the codec's bounded
decoding, then the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod

import numpy as np

from mqinfer.cloud_worker.serving.stream_states import StreamStates
from mqinfer.codecs import STATEFUL, codecs_for, decode_tensor, encode_tensor
from mqinfer.images.decode import as_image, depth_name, is_depth, to_depth, to_rgb
from mqinfer.images.picture import RawImage
from mqinfer.images.pixel_format import Demosaic
from mqinfer.images.placement import to_model_input
from mqinfer.models.backend import batch_sizes
from mqinfer.models.loading import LoadedModel
from mqinfer.models.postprocess.classification import classify
from mqinfer.models.postprocess.stage import Postprocessed, network_of
from mqinfer.protocol.card import ColourOrder, ImageContract
from mqinfer.protocol.datatypes import ITEM_BYTES, Array, Datatype
from mqinfer.protocol.errors import BadImage, BadTensor, InvalidRequest, ModelFailed, ModelNotFound, MqinferError
from mqinfer.protocol.header import BIT_DEPTH, DEMOSAIC, IMAGE_ENCODING, OUTPUT_ENCODING, SIGNATURE
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.types import EncodedTensor, InferRequest, Scalar, TensorSpec
from mqinfer.value_object import value_object

log = logging.getLogger("mqinfer.cloud_worker")

_RAW = "raw"
_PLAIN = ("rgb8", "bgr8", "mono8")
_SAMPLES = (np.uint8, np.uint16, np.float32)


@value_object(eq=False)
class Prepared:
    """A request whose inputs are ready to run.

    Attributes:
        inputs: Every input of the model, in its declared dtype.
        rows: Entries on the batch axis; 1 where there is none.
        outputs: Names of the network's outputs that are wanted, empty for all.
        key: Requests with equal keys may share a batch.
        service: Runs it: that of the requested signature.
        decode_ns: Time in codecs, in nanoseconds.
        preprocess_ns: Time in the processing of images, in nanoseconds.
        nbytes: Memory of the inputs.
    """

    inputs: dict[str, Array]
    rows: int
    outputs: tuple[str, ...]
    key: Hashable
    service: InferenceService
    decode_ns: int
    preprocess_ns: int
    nbytes: int = 0


@value_object(eq=False)
class Completed:
    """What became of one request of a batch.

    Attributes:
        outputs: Arrays by name; empty if it failed.
        error: Why it failed, or None.
        inference_ns: Time of the whole batch in the engine, in nanoseconds.
        postprocess_ns: Time of splitting the batch, in nanoseconds.
    """

    outputs: dict[str, Array]
    error: MqinferError | None
    inference_ns: int
    postprocess_ns: int = 0


class InferenceService:
    """One loaded model. `prepare` and `encode` may be called from any thread, `run` from one at a time."""

    def __init__(
        self,
        model: LoadedModel,
        limits: Limits = DEFAULT_LIMITS,
        ran: Callable[[int, int, int, int], None] = lambda *_: None,
        count: Callable[[str], None] = lambda _: None,
        streams: StreamStates | None = None,
    ) -> None:
        """Set up.

        Args:
            model: Loaded and warm.
            limits: Bounds for what requests hold.
            ran: Receives of each run the rows, and the nanoseconds of preparing, inferring and splitting.
            count: Counts by name: `batches_rerun`, a batch that failed as a whole, so that its members run again, each
                alone; and what `StreamStates` counts.
            streams: What is kept of streams; None for a new one.
        """
        self.model = model
        self._limits = limits
        self._codecs = codecs_for(model.card.parameters.device)
        self._ran = ran
        self._count = count
        self._streams = StreamStates(count) if streams is None else streams
        self._name, self._version = model.card.name, model.card.version
        self._inputs = {spec.name: spec for spec in model.card.inputs}
        self._contracts = {contract.input: contract for contract in model.card.pictures}
        self._outputs = {spec.name for spec in model.card.outputs}
        self._max_rows = model.card.max_batch_size
        self._least_axes = model.card.least_axes
        self._network = network_of(model.backend)
        self._sizes = [size for size in batch_sizes(self._network) if size <= self._max_rows]
        self._stage = model.backend if isinstance(model.backend, Postprocessed) else None
        self._signature = model.card.parameters.signatures[0].name if model.card.parameters.signatures else ""
        self._signatures = {
            name: InferenceService(each, limits, ran, count, self._streams) for name, each in model.signatures.items()
        }

    @property
    def max_rows(self) -> int:
        """Rows that one batch may have; 1 for a model without a batch axis."""
        return max(1, self._max_rows)

    def prepare(self, request: InferRequest, client: str = "") -> Prepared:
        """Check and decode a request.

        Args:
            request: As received.
            client: The sender, for pictures that are encoded against earlier ones of its streams.

        Raises:
            ModelNotFound: It is for another model or version.
            ReferenceLost: A picture is encoded against one that is not kept here.
            BadImage: A picture's pixels are not what its encoding says.
            InvalidRequest: A signature, name, shape, datatype, codec or size is wrong.
        """
        if request.parameters and (requested := self._requested(request)) is not self:
            return requested.prepare(request, client)
        self._check_request(request)
        inputs: dict[str, Array] = {}
        decode_ns = preprocess_ns = nbytes = 0
        for tensor in request.inputs:
            array, decoding_ns, preprocessing_ns = self._decode(tensor, client, request.capture.source)
            inputs[tensor.name] = array
            nbytes += array.nbytes if tensor.datatype is not Datatype.BYTES else _text_bytes(array)
            decode_ns += decoding_ns
            preprocess_ns += preprocessing_ns
        outputs = tuple([output.name for output in request.outputs]) if request.outputs else ()
        if self._stage is not None:
            outputs = self._stage.needed(outputs)
        if self._max_rows == 0:  # no batch axis: nothing is shared, one after the other
            return Prepared(inputs, 1, outputs, self._signature or None, self, decode_ns, preprocess_ns, nbytes)
        rows, shapes = self._batch_axis(inputs)
        key = (outputs, shapes, self._signature)
        return Prepared(inputs, rows, outputs, key, self, decode_ns, preprocess_ns, nbytes)

    def forget_idle(self) -> bool:
        """Free what is kept of streams without a picture for a while; return whether there were any."""
        return self._streams.forget_idle()

    def run(self, batch: Sequence[Prepared]) -> list[Completed]:
        """Run a batch of equal keys; where it fails, each member runs alone, so that one can't spoil the others."""
        service = batch[0].service
        if service is not self:
            return service.run(batch)
        if len(batch) == 1:
            return [self._run_alone(batch[0])]
        if not self._max_rows:  # a signature without a batch axis, of a model with one
            return [self._run_alone(item) for item in batch]
        started = time.perf_counter_ns()
        try:
            outputs, rows = self._infer(batch)
            inferred = time.perf_counter_ns()
            parts = _split(outputs, rows)[: len(batch)]
        except BaseException:  # noqa: BLE001  mapped where a member fails alone: also SystemExit, which ends a thread
            self._count("batches_rerun")
            return [self._run_alone(item) for item in batch]
        infer_ns, split_ns = inferred - started, time.perf_counter_ns() - inferred
        prepared_ns = sum(item.decode_ns + item.preprocess_ns for item in batch)
        self._ran(sum(item.rows for item in batch), prepared_ns, infer_ns, split_ns)
        return [Completed(part, None, infer_ns, split_ns) for part in parts]

    def _infer(self, batch: Sequence[Prepared]) -> tuple[dict[str, Array], list[int]]:
        """Run the network once; return whose the rows of the outputs are.

        A batch is filled up to the next size that the network prepares, with copies of a row, which come last.
        """
        inputs, rows = [item.inputs for item in batch], [item.rows for item in batch]
        total = sum(rows)
        missing = next((size for size in self._sizes if size >= total), total) - total
        if total and missing:
            given = max(batch, key=lambda item: item.rows).inputs
            inputs.append({name: np.repeat(array[-1:], missing, axis=0) for name, array in given.items()})
            rows.append(missing)
        whole = inputs[0]
        if len(inputs) > 1:
            whole = {name: np.concatenate([each[name] for each in inputs]) for name in whole}
        return self._network.infer(whole, batch[0].outputs), rows

    def _run_alone(self, item: Prepared) -> Completed:
        started = time.perf_counter_ns()
        try:
            if not self._sizes or item.rows in self._sizes:
                outputs = self._network.infer(item.inputs, item.outputs)
            else:
                outputs = _split(*self._infer([item]))[0]
        except BaseException as error:  # noqa: BLE001  mapped below: also SystemExit, which ends a thread in silence
            return Completed({}, _failure(error), time.perf_counter_ns() - started)
        inference = time.perf_counter_ns() - started
        self._ran(item.rows, item.decode_ns + item.preprocess_ns, inference, 0)
        return Completed(outputs, None, inference)

    def finish(self, request: InferRequest, outputs: dict[str, Array]) -> dict[str, Array]:
        """Finish the network's outputs: masks or boxes as `model.toml` says, top classes as the request says.

        Raises:
            BadTensor: An output can't be classified, or boxes are wanted of several pictures.
            ModelFailed: The outputs are not what `model.toml` says.
        """
        if request.parameters and (requested := self._requested(request)) is not self:
            return requested.finish(request, outputs)
        if self._stage is not None:
            outputs = self._stage.finish(outputs, [output.name for output in request.outputs])
        if not request.outputs:
            return outputs
        counts = {output.name: output.classification for output in request.outputs if output.classification}
        card = self.model.card
        return outputs | {
            name: classify(name, outputs[name], count, card.classes, batched=self._max_rows > 0)
            for name, count in counts.items()
        }

    def encode(self, request: InferRequest, outputs: dict[str, Array]) -> tuple[EncodedTensor, ...]:
        """Encode outputs as the request wishes.

        Raises:
            BadEncoding: The codec asked for is unknown or can't carry an output.
        """
        default = str(request.parameters.get(OUTPUT_ENCODING, _RAW))
        wanted = {output.name: output.encoding or default for output in request.outputs} if request.outputs else {}
        tensors: list[EncodedTensor] = []
        for name, array in outputs.items():
            tensors.append(encode_tensor(name, array, wanted.get(name, default)))
        return tuple(tensors)

    def _requested(self, request: InferRequest) -> InferenceService:
        """Return the service of the signature that a request asks for."""
        name = request.parameters.get(SIGNATURE, "")
        if name in {"", self._signature}:
            return self
        if name not in self._signatures:
            known = ", ".join(filter(None, [self._signature, *self._signatures])) or "none"
            raise InvalidRequest(f"model {self._name!r} has no signature {str(name)[:80]!r}; it has: {known}")
        return self._signatures[str(name)]

    def _check_request(self, request: InferRequest) -> None:
        if request.model_name != self._name:
            raise ModelNotFound(f"this worker serves model {self._name!r}, not {request.model_name!r}")
        if request.model_version not in {None, self._version}:
            raise ModelNotFound(f"this worker serves version {self._version} of it, not {request.model_version}")
        expected, inputs = self._inputs, request.inputs
        is_the_one = len(inputs) == len(expected) == 1 and inputs[0].name in expected
        if not is_the_one:
            given = [tensor.name for tensor in inputs]
            if sorted(given) != sorted(expected):
                raise BadTensor(f"model {request.model_name!r} takes the inputs {sorted(expected)}, not {given}")
        for output in request.outputs:
            if output.name not in self._outputs:
                unknown = [each.name for each in request.outputs if each.name not in self._outputs]
                raise BadTensor(f"model {request.model_name!r} has the outputs {sorted(self._outputs)}, not {unknown}")

    def _decode(self, tensor: EncodedTensor, client: str, source: str) -> tuple[Array, int, int]:
        """Decode an input, and bring a picture into the form that the model takes.

        Returns:
            The array, and the nanoseconds of decoding and of pre-processing.
        """
        spec, contract = self._inputs[tensor.name], None
        if IMAGE_ENCODING not in tensor.parameters:
            _check_shape(tensor, spec, self._least_axes.get(tensor.name))
        elif (contract := self._contracts.get(tensor.name)) is None:
            raise BadTensor(f"input {tensor.name!r} of this model is not a picture; send a plain tensor")
        started = time.perf_counter_ns()
        if tensor.encoding in STATEFUL:
            key = (client, source, tensor.name, tensor.encoding)
            array = self._streams.decode(tensor, key, self._limits, self._codecs)
        else:
            array = decode_tensor(tensor, self._limits, self._codecs)
        decoded = time.perf_counter_ns()
        if contract is None:
            return array, decoded - started, 0
        pixels = self._preprocess(tensor, array, contract, spec)
        return pixels, decoded - started, time.perf_counter_ns() - decoded

    def _preprocess(self, tensor: EncodedTensor, array: Array, contract: ImageContract, spec: TensorSpec) -> Array:
        encoding = str(tensor.parameters[IMAGE_ENCODING])
        pixels = _one_picture(tensor.name, array)
        if encoding not in _PLAIN or contract.colour is ColourOrder.DEPTH:  # a mosaic, 16 bits, …: as recorded
            pixels, encoding = self._from_recorded(as_image(pixels, encoding), contract, tensor.parameters)
        batch = to_model_input(pixels, encoding, contract, spec.datatype)
        return batch if self._max_rows or len(spec.shape) == batch.ndim else batch[0]

    def _from_recorded(
        self, image: RawImage, contract: ImageContract, parameters: Mapping[str, Scalar]
    ) -> tuple[Array, str]:
        """Return a picture as recorded as colours, or as distances for a model that takes depth; and its encoding."""
        if contract.colour is ColourOrder.DEPTH:
            depth = to_depth(image, limits=self._limits)
            return depth, depth_name(depth)
        if is_depth(image):
            raise BadImage(f"{image.encoding} is a depth picture, and this model takes colours")
        method, bits = _method(parameters.get(DEMOSAIC, Demosaic.BILINEAR)), parameters.get(BIT_DEPTH)
        if bits is not None and type(bits) is not int:
            raise BadTensor(f"the picture's {BIT_DEPTH} is {str(bits)[:80]!r}; expected a number from 8 to 16")
        return to_rgb(image, method=method, bit_depth=bits, limits=self._limits), "rgb8"

    def _batch_axis(self, inputs: dict[str, Array]) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Return the rows of a request, and the shapes of its inputs without the batch axis."""
        count = -1
        shapes: list[tuple[int, ...]] = []
        for name in self._inputs:
            shape = inputs[name].shape
            if count not in {-1, shape[0]}:
                differing = sorted({each.shape[0] for each in inputs.values()})
                raise BadTensor(f"the inputs differ in their batch axis: {differing}")
            count = shape[0]
            shapes.append(shape[1:])
        if not 0 <= count <= self._max_rows:
            raise BadTensor(
                f"a batch of {count}; model {self._name!r} takes at most {self._max_rows}, the max_batch_size of its "
                "card (of its model.toml or, without one there, 8 where the first axes are open); send fewer rows, or "
                "raise it there"
            )
        return count, tuple(shapes)


def _failure(error: BaseException) -> MqinferError:
    if isinstance(error, MqinferError):
        return error
    log.error("the back end broke its contract", exc_info=error)
    return ModelFailed(f"the back end raised {error!r}")


def _check_shape(tensor: EncodedTensor, spec: TensorSpec, least_axes: int | None) -> None:
    """Raise unless a tensor has a model's datatype and shape; `least_axes` is that of an input of any rank."""
    if tensor.datatype is not spec.datatype:
        raise BadTensor(f"input {tensor.name!r} has datatype {tensor.datatype}; expected {spec.datatype}")
    fits = len(tensor.shape) == len(spec.shape) if least_axes is None else len(tensor.shape) >= least_axes
    for size, declared in zip(tensor.shape, spec.shape, strict=False):  # a loop: it runs for every input of a request
        fits = fits and declared in {-1, size}
    if not fits:
        raise BadTensor(
            f"input {tensor.name!r} has shape {list(tensor.shape)}; expected {list(spec.shape)} (-1: any size)"
        )


def _text_bytes(array: Array) -> int:
    """Return the memory of strings: of each one object, its place in the array, and its own bytes."""
    return array.size * ITEM_BYTES[Datatype.BYTES] + sum(map(len, array.ravel().tolist()))


def _one_picture(name: str, array: Array) -> Array:
    """Drop the batch axis of `[1, H, W, C]` or `[1, H, W]`; several pictures are sent as so many requests."""
    batched = array.ndim == 4 or (array.ndim == 3 and array.shape[2] not in (1, 3))
    shape = array.shape[1:] if batched else array.shape
    if array.dtype not in _SAMPLES or array.size == 0 or len(shape) not in (2, 3) or array.size != prod(shape):
        raise BadTensor(
            f"input {name!r}: a picture is UINT8, UINT16 or FP32, [H, W] or [H, W, 3], with an optional leading 1, "
            f"not {array.dtype} {list(array.shape)}"
        )
    return array.reshape(shape)


def _method(name: Scalar) -> Demosaic:
    try:
        return Demosaic(str(name))
    except ValueError:
        raise BadTensor(
            f"the picture's {DEMOSAIC} is {str(name)[:80]!r}; expected one of {', '.join(Demosaic)}"
        ) from None


def _split(outputs: dict[str, Array], rows: Sequence[int]) -> list[dict[str, Array]]:
    total = sum(rows)
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != total:
            raise ModelFailed(
                f"output {name!r} has shape {list(array.shape)} for a batch of {total}: it has no batch axis; "
                f"set max_batch_size = 0 in model.toml"
            )
    ends = np.cumsum(rows)
    return [
        {name: array[end - count : end] for name, array in outputs.items()}
        for count, end in zip(rows, ends, strict=True)
    ]
