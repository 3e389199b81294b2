"""`mqinfer replay`."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mqinfer.bags.sources import is_live
from mqinfer.cli.local import local_worker
from mqinfer.cli.options import (
    Broker,
    CaFile,
    CertFile,
    KeyFile,
    Name,
    Root,
    Verbose,
    address,
    set_up_logging,
    until_signal,
)
from mqinfer.client.connection import connect, random_name
from mqinfer.client.options import ClientOptions
from mqinfer.edge_agent.quality_ladder import QualityBounds
from mqinfer.edge_agent.replay import ReplayOptions
from mqinfer.edge_agent.report import summary, summary_table, write_summary
from mqinfer.edge_agent.session import ReplaySettings, SessionReport, edge_presence, run_session
from mqinfer.edge_agent.sinks.factory import SINK_KINDS
from mqinfer.edge_agent.window import Policy
from mqinfer.images.demosaic import Demosaic
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome

__all__ = ["replay"]

_TIMEOUT_S = {Policy.LATEST: 2.0, Policy.ALL: 300.0}


def replay(
    source: Annotated[str, typer.Argument(help="Bag, video, folder of pictures, camera:0, or URL of a camera.")],
    model: Annotated[str, typer.Option(help="Name of the model.")],
    broker: Broker = "mqtt://127.0.0.1:1883",
    local: Annotated[bool, typer.Option("--local", help="Run the model in this process, without a broker.")] = False,
    repository: Annotated[Path, typer.Option(help="Model repository for --local.")] = Path("models"),
    version: Annotated[
        str | None, typer.Option(help="Version of the model; by default the one that its version policy prefers.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Image topic of the bag; may be repeated. All by default.")
    ] = None,
    rate: Annotated[
        float, typer.Option(help="Speed: 1 as recorded, 2 twice as fast, 0 as fast as results allow.", min=0)
    ] = 0,
    start: Annotated[float, typer.Option(help="Where to start, in seconds after the first frame.", min=0)] = 0,
    duration: Annotated[float | None, typer.Option(help="How much to replay, in seconds; all by default.")] = None,
    loop: Annotated[bool, typer.Option("--loop", help="Start again at the end, until Ctrl-C.")] = False,
    window: Annotated[
        int, typer.Option(help="Largest number of requests in flight for each stream.", min=1, max=1000)
    ] = 8,
    policy: Annotated[
        Policy | None,
        typer.Option(
            help="When the window is full: latest keeps only the newest frame, all lets the reader wait. "
            "By default latest for cameras, all for recordings."
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Time limit of each request, in seconds; by default 300, or 2 with latest.", min=0.001, max=1e6
        ),
    ] = None,
    min_rate: Annotated[
        float,
        typer.Option(help="Lower JPEG quality, then size, while fewer results a second arrive; 0 for never.", min=0),
    ] = 0,
    min_quality: Annotated[int, typer.Option(help="Lowest JPEG quality for --min-rate.", min=1, max=100)] = 50,
    min_scale: Annotated[
        float, typer.Option(help="Smallest factor on width and height for --min-rate.", min=0.1, max=1)
    ] = 0.5,
    encoding: Annotated[
        str | None,
        typer.Option(
            help="Codec of the frames: jpeg[:1-100], png[:0-9], lz4 or raw; by default jpeg:90, "
            "or lz4 if the worker can't decode JPEG."
        ),
    ] = None,
    output_encoding: Annotated[
        str | None,
        typer.Option(
            help="Codec of the results: mask, lz4, raw or png; by default mask for class masks, lz4 for others."
        ),
    ] = None,
    demosaic: Annotated[Demosaic, typer.Option(help="Method for Bayer mosaics.")] = Demosaic.BILINEAR,
    bit_depth: Annotated[
        int | None, typer.Option(help="Significant bits of 16-bit samples; 16 by default.", min=8, max=16)
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the results, which keeps those of earlier runs; none by default.")
    ] = None,
    sink: Annotated[
        list[str] | None,
        typer.Option(help=f"Kind of results: {', '.join(SINK_KINDS)}; may be repeated. All by default."),
    ] = None,
    picture_every: Annotated[int, typer.Option(help="Write an overlay picture every N frames.", min=1)] = 10,
    summary_file: Annotated[Path | None, typer.Option("--summary", help="JSON file for the summary.")] = None,
    spool: Annotated[
        Path | None, typer.Option(help="Folder that keeps frames while there is no connection; needs policy all.")
    ] = None,
    spool_mb: Annotated[int, typer.Option(help="Bound of the spool, in megabytes of encoded frames.", min=1)] = 4096,
    name: Name = None,
    root: Root = "mqinfer/v1",
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    verbose: Verbose = False,
) -> None:
    """Send the frames of a recorded drive to a model, and keep the results."""
    set_up_logging(verbose=verbose)
    chosen = policy or (Policy.LATEST if is_live(source) else Policy.ALL)
    bounds = QualityBounds(min_rate, min_quality, min_scale)
    settings = ReplaySettings(
        source=source,
        options=ReplayOptions(model, version, window, timeout or _TIMEOUT_S[chosen], output_encoding, chosen, bounds),
        topics=topic or (),
        rate=rate,
        start=start,
        duration=duration,
        loop=loop,
        encoding=encoding,
        demosaic=demosaic,
        bit_depth=bit_depth,
        output=output,
        sinks=sink or SINK_KINDS,
        picture_every=picture_every,
        spool=spool,
        spool_bytes=spool_mb * 10**6,
    )
    if spool and chosen is Policy.LATEST:
        raise ConfigError("--spool keeps every frame, --policy latest only the newest; leave out one of them")
    place = f"memory://local-{secrets.token_hex(4)}" if local else broker
    broker_address = address(place, ca_file, cert_file, key_file)
    client_name, topics = name or random_name(), Topics(root)
    with ExitStack() as stack:
        if local:
            stack.enter_context(local_worker(repository, model, version, broker_address, topics))
        presence = edge_presence(client_name, topics, source, model, window=window)
        options = ClientOptions(window=window)
        requester = connect(broker_address, client_name, topics, options, presence=presence)
        stack.callback(requester.close)
        stack.callback(presence.publish, "stopped")
        report = run_session(settings, requester, "local" if local else broker, until_signal(), Console(stderr=True))
    _report(report, summary_file)


def _report(report: SessionReport, summary_file: Path | None) -> None:
    """Print the table, write the summary, and exit with 1 if a frame has no result."""
    console = Console()
    console.print(summary_table(report.snapshot))
    damaged = report.run.spool_damaged
    if damaged:
        console.print(f"{damaged} frames were damaged in the spool, and set aside there as *.damaged", soft_wrap=True)
    for path in report.run.files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    try:
        if summary_file:
            write_summary(summary_file, summary(report.snapshot, report.run))
            console.print(f"wrote {summary_file}", highlight=False, soft_wrap=True)
    finally:
        if report.broke_off:
            raise report.broke_off
    if damaged or report.snapshot.done != report.snapshot.outcomes[Outcome.OK]:
        raise typer.Exit(1)
