"""The table of fuzz targets: every decoder of bytes that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from tests.fuzz import calls, edge_files, file_seeds, messages, model_files, seeds
from tests.fuzz.mutation import Mutator, in_envelope, in_json, in_lz4, in_packets, in_png, in_tail_json, in_units
from tests.fuzz.tensors import HEAD, picture, pixels, probe, tensor_of, video

__all__ = ["TARGETS", "Target"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder, or a few that read the same bytes.

    Attributes:
        run: Raises nothing but MqinferError.
        seeds: Valid inputs.
        mutate: Knows the form, or None for the fuzzer's own mutations alone.
        share: Of the inputs of a run over all targets; slow decoders get less.
        longest: Input, in bytes.
        memory: By which one input may raise the peak of memory, in bytes: for codecs a few times the limit of one
            tensor (4 MiB in these runs), for messages a few hundred times the longest input.
    """

    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    mutate: Mutator | None = None
    share: int = 4
    longest: int = 4096
    memory: int = 8 * _MIB


TARGETS = {
    "envelope": Target(messages.envelopes, seeds.envelopes, in_envelope, share=12, longest=8192),
    "oip-json": Target(messages.oip, seeds.oips, in_tail_json, share=8),
    "card": Target(messages.card, partial(seeds.files, "card.json"), in_json, longest=8192),
    "worker-state": Target(messages.worker_state, partial(seeds.files, "state.json"), in_json),
    "server-state": Target(messages.server_state, seeds.server_states, in_json, share=2),
    "cancellation": Target(messages.cancellation, seeds.cancellations, in_json, share=2),
    "control": Target(messages.control, seeds.controls),
    "topics": Target(messages.topics, seeds.topics),
    "message": Target(messages.message, seeds.messages, share=4),
    "packets": Target(messages.packets, seeds.packets, in_packets, share=4),
    "raw": Target(tensor_of("raw"), partial(seeds.tensors, "raw"), memory=64 * _MIB),
    "lz4": Target(tensor_of("lz4"), partial(seeds.tensors, "lz4"), in_lz4(HEAD.size), memory=64 * _MIB),
    "shuffle-lz4": Target(
        tensor_of("shuffle-lz4"), partial(seeds.tensors, "shuffle-lz4"), in_lz4(HEAD.size), memory=64 * _MIB
    ),
    "mask": Target(tensor_of("mask"), partial(seeds.tensors, "mask"), in_lz4(HEAD.size + 5), memory=64 * _MIB),
    "probe-jpeg": Target(probe, seeds.jpegs),
    "probe-png": Target(probe, seeds.pngs, in_png),
    "jpeg": Target(picture, seeds.jpegs, share=3, memory=64 * _MIB),
    "png": Target(picture, seeds.pngs, in_png, share=3, memory=64 * _MIB),
    "video": Target(video, seeds.videos, in_units, share=3, longest=65536, memory=64 * _MIB),
    "pixels": Target(pixels, seeds.pixels, share=3, memory=64 * _MIB),
    "onnx": Target(model_files.onnx, seeds.onnxes, share=2),
    "triton": Target(model_files.triton, partial(seeds.files, "*.pbtxt"), share=1, memory=16 * _MIB),
    "toml": Target(model_files.toml, partial(seeds.files, "*.toml"), share=1, memory=64 * _MIB),
    "rest": Target(calls.rest, seeds.oips, in_tail_json),
    "grpc": Target(calls.grpc, file_seeds.grpcs),
    "tfs": Target(calls.tfs, file_seeds.tfs, in_json),
    "connect": Target(calls.connect, file_seeds.connects, share=1),
    "ros1": Target(edge_files.ros1, file_seeds.ros1, longest=32768, memory=64 * _MIB),
    "mcap": Target(edge_files.mcap, file_seeds.mcap, longest=32768, memory=64 * _MIB),
    "points": Target(edge_files.points, file_seeds.points),
    "spooled": Target(edge_files.spooled, file_seeds.spooled, share=2),
    "log": Target(edge_files.log, file_seeds.logs, share=2),
}
