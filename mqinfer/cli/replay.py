"""`mqinfer replay`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mqinfer.bags.sources import is_live
from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.exit_codes import ExitCode, exit_code, print_error
from mqinfer.cli.local import local_worker
from mqinfer.cli.options import (
    Connection,
    MetricsBind,
    MetricsPort,
    OtlpEndpoint,
    TakeOver,
    plain_console,
    table_console,
    until_signal,
    with_connection,
)
from mqinfer.client.announcer import Announcer
from mqinfer.client.connection import Unconnected, default_name
from mqinfer.client.control import ControlClient
from mqinfer.client.options import ClientOptions
from mqinfer.client.window import Policy
from mqinfer.edge_agent.bit_depths import BitDepths
from mqinfer.edge_agent.metrics import edge_metrics, pending_frames
from mqinfer.edge_agent.model_run import ModelRun
from mqinfer.edge_agent.quality_ladder import QualityBounds
from mqinfer.edge_agent.replay import ReplayOptions
from mqinfer.edge_agent.report import Ending, failure_lines, summary, summary_table, write_summary
from mqinfer.edge_agent.session import ReplaySettings, SessionReport, run_sessions
from mqinfer.edge_agent.sinks.factory import SINK_KINDS
from mqinfer.images.demosaic import Demosaic
from mqinfer.logs import printable
from mqinfer.metrics.endpoint import LOOPBACK, serving_metrics
from mqinfer.protocol.control import Call, ModelState, Operation
from mqinfer.protocol.errors import ConfigError, ModelNotFound, ModelNotLoadable, MqinferError
from mqinfer.protocol.topics import Topics
from mqinfer.telemetry.exporting import check_endpoint, make_tracer

__all__ = ["failed_load", "replay"]

_CONNECT_S, _ASK_S = 10.0, 2.0
_TIMEOUT_S = {Policy.LATEST: 2.0, Policy.ALL: 300.0}


@with_connection
def replay(
    connection: Connection,
    source: Annotated[str, typer.Argument(help="Bag, video, folder of pictures, camera:0, or URL of a camera.")],
    model: Annotated[
        list[str], typer.Option(help="Name of the model; may be repeated: the source is read once for all of them.")
    ],
    local: Annotated[bool, typer.Option("--local", help="Run the model in this process, without a broker.")] = False,
    repository: Annotated[Path, typer.Option(help="Model repository for --local.")] = Path("models"),
    version: Annotated[
        str | None,
        typer.Option(help="Version of the model, or a label such as stable; the default version if omitted."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Image topic of the bag; may be repeated. By default all but depth."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Speed: 1 as recorded, 2 twice as fast, 0 as fast as results allow. "
            "By default 1 for a recording with --policy latest, else 0.",
            min=0,
        ),
    ] = None,
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
        list[str] | None,
        typer.Option(help="Significant bits of 16-bit samples, 12 or /topic=12; may be repeated. 16 by default."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results; with several models each has a folder of its name there. Files of earlier "
            "runs are kept under numbers (results.1.jsonl). No files by default."
        ),
    ] = None,
    sink: Annotated[
        list[str] | None,
        typer.Option(help=f"Kind of results: {', '.join(SINK_KINDS)}; may be repeated. All by default."),
    ] = None,
    picture_every: Annotated[int, typer.Option(help="Write an overlay picture every N frames.", min=1)] = 10,
    summary_file: Annotated[
        Path | None,
        typer.Option("--summary", help="JSON file for the summary; that of an earlier run is kept under a number."),
    ] = None,
    spool: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps frames while there is no connection, also before the first one; needs policy all."
        ),
    ] = None,
    spool_mb: Annotated[int, typer.Option(help="Bound of the spool, in megabytes of encoded frames.", min=1)] = 4096,
    take_over: TakeOver = False,
    metrics_port: MetricsPort = None,
    metrics_bind: MetricsBind = LOOPBACK,
    otlp_endpoint: OtlpEndpoint = None,
) -> None:
    """Send the frames of a recorded drive to a model, and keep the results."""
    chosen = policy or (Policy.LATEST if is_live(source) else Policy.ALL)
    models = list(dict.fromkeys(model))
    bounds = QualityBounds(min_rate, min_quality, min_scale)
    limit = timeout or _TIMEOUT_S[chosen]
    settings = ReplaySettings(
        source=source,
        options=ReplayOptions(models[0], version, window, limit, output_encoding, chosen, bounds),
        topics=topic or (),
        rate=rate,
        start=start,
        duration=duration,
        loop=loop,
        encoding=encoding,
        demosaic=demosaic,
        bit_depths=BitDepths.parse(bit_depth or ()),
        output=output,
        sinks=sink or SINK_KINDS,
        picture_every=picture_every,
        spool=spool,
        spool_bytes=spool_mb * 10**6,
    )
    if spool and chosen is Policy.LATEST:
        raise ConfigError("--spool keeps every frame, --policy latest only the newest; leave out one of them")
    if version and len(models) > 1:
        raise ConfigError("--version is of one model; with several --model leave it out, or replay them one by one")
    broker_address = (
        BrokerAddress.parse(f"memory://local-{secrets.token_hex(4)}")  # takes no login, whatever the environment holds
        if local
        else connection.address()
    )
    client_name, root = connection.name or default_name(broker_address), connection.root
    topics = Topics(root)
    tracer = make_tracer("mqinfer-edge", client_name, check_endpoint(otlp_endpoint))
    with ExitStack() as stack:
        if tracer is not None:
            stack.callback(tracer.close)
        if local:
            for each in models:
                stack.enter_context(local_worker(repository, each, version, broker_address, topics, tracer))
        announcer = Announcer(client_name, topics, source, ",".join(models), window=window)
        options = ClientOptions(window=window * len(models))
        client = Unconnected(broker_address, client_name, topics, options, announcer=announcer, take_over=take_over)
        requester = client.requester
        requester.tracer = tracer
        stack.callback(requester.close)
        stack.callback(announcer.presence.end)
        runs: list[ModelRun] = []
        announcer.pending = partial(pending_frames, requester, runs)
        stack.enter_context(serving_metrics(edge_metrics(requester, runs), metrics_port, metrics_bind))
        if not spool:
            client.open(_CONNECT_S)
        stop = until_signal()
        try:
            reports = run_sessions(
                settings,
                models,
                requester,
                broker="local" if local else str(broker_address),
                stop=stop,
                console=plain_console(stderr=True),
                connect=client.open if spool else None,
                on_runs=runs.extend,
            )
        except ModelNotFound as error:
            raise (None if local else failed_load(broker_address, client_name, root, models)) or error from None
    raise typer.Exit(_report(reports, summary_file))


def failed_load(broker: BrokerAddress, name: str, root: str, models: Sequence[str]) -> ModelNotLoadable | None:
    """Return why a server could not load one of the models; None if no server says so to this client."""
    try:
        with ControlClient(broker, name=name, root=root, connect_timeout=_ASK_S) as control:
            replies = control.ask(Call(Operation.INDEX), timeout=_ASK_S)
    except MqinferError:
        return None
    failures = [
        f"server {reply.server} can't load model {entry['name']!r}: {entry['reason']}"
        for reply in replies
        for entry in (reply.content if isinstance(reply.content, list) else [])
        if isinstance(entry, dict) and entry.get("name") in models and _is_failed(entry)
    ]
    return ModelNotLoadable("; ".join(failures)) if failures else None


def _is_failed(entry: Mapping[str, object]) -> bool:
    """Return whether an entry of a server's index names a reason why the model is not served."""
    return entry.get("state") != ModelState.READY and entry.get("reason") not in {None, "", "not loaded"}


def _report(reports: Sequence[SessionReport], summary_file: Path | None) -> ExitCode:
    """Print the tables and why frames failed, write the summary, and return the exit code."""
    console = table_console()
    for report in reports:
        _print_report(console, report, is_titled=len(reports) > 1)
    try:
        if summary_file:
            each = [summary(report.snapshot, report.run) for report in reports]
            write_summary(summary_file, each[0] if len(each) == 1 else {"models": each})
            _print(console, f"wrote {summary_file}")
    finally:
        for report in reports:
            if report.broke_off:
                print_error(report.broke_off)
    return max(_exit_code(report) for report in reports)


def _print_report(console: Console, report: SessionReport, *, is_titled: bool) -> None:
    run, snapshot = report.run, report.snapshot
    if is_titled:
        _print(console, run.model)
    console.print(summary_table(snapshot))
    for line in failure_lines(snapshot):
        _print(console, line)
    if run.ended is Ending.INTERRUPTED:
        _print(console, f"interrupted before the end: {snapshot.frames_read} frames were read")
    if run.spool_damaged:
        _print(console, f"{run.spool_damaged} frames were damaged in the spool, and set aside there as *.damaged")
    for path in run.files:
        _print(console, f"wrote {path}")


def _print(console: Console, line: str) -> None:
    console.print(printable(line), soft_wrap=True)


def _exit_code(report: SessionReport) -> ExitCode:
    """Return the code of one model's run; frames that failed count only in a recording that was read to its end."""
    ended, error = report.run.ended, report.broke_off
    if ended is Ending.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if ended is Ending.INCOMPLETE:
        return ExitCode.INCOMPLETE
    if error:
        return exit_code(error)
    has_failed = report.run.spool_damaged or (report.snapshot.failed and not report.is_stopped)
    return ExitCode.FAILED if has_failed else ExitCode.OK
