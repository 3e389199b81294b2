"""How a worker is set up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.topics import Topics

if TYPE_CHECKING:  # a model's process imports this module, and none of the commands
    import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """How each process serves; each field is an option of `mqinfer worker`, with its help, here alone."""

    capacity: Annotated[
        int, typer.Option(help="Requests that a process accepts at a time; it rejects further ones as busy.", min=1)
    ] = 64
    threads: Annotated[
        int, typer.Option(help="Threads in each process for decoding, inference and encoding.", min=1)
    ] = 2
    group: Annotated[
        str,
        typer.Option(help="Group of workers that share requests. With access rules: a secret that only workers know."),
    ] = "workers"


@dataclass(frozen=True, slots=True)
class WorkerOptions(ServingOptions):
    """One worker: one instance of one version of one model.

    Attributes:
        name: Its name in topics and replies; unique on the broker.
        topics: The site's topics.
        capacity_bytes: Bytes of the payloads that it accepts, all together; a single larger one is accepted. As many
            more of decoded inputs that wait or run: beyond that the next are not decoded yet.
        inline_s: An idle worker serves a request on the link's thread, without a switch of threads, while requests
            keep a thread busy for less than so many seconds; 0 for never.
        inline_bytes: Largest payload that is served so, in bytes.
        memory_bytes: Stored replies, for requests that come twice, in bytes.
        limits: Bounds for what requests hold.
    """

    name: str
    topics: Topics = field(default_factory=Topics)
    capacity_bytes: int = 256 << 20
    inline_s: float = 0.0005
    inline_bytes: int = 64 << 10
    memory_bytes: int = 64 << 20
    limits: Limits = DEFAULT_LIMITS
