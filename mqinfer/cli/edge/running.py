"""Run a replay or an edge agent: connect, send the frames, print what came of it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.edge.sending import Sending
from mqinfer.cli.exit_codes import ExitCode, exit_code, print_error
from mqinfer.cli.local import local_address, local_versions, versions_of
from mqinfer.cli.options import ConnectionOptions, plain_console, table_console
from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.connection import Unconnected, default_name
from mqinfer.client.options import ClientOptions
from mqinfer.client.requester import Requester
from mqinfer.client.watching.absence import Absence
from mqinfer.edge_agent.metrics import EdgeStreams, add_edge, pending_frames
from mqinfer.edge_agent.model_run import ModelRun
from mqinfer.edge_agent.reporting.page import ReportFile, write_report
from mqinfer.edge_agent.reporting.report import (
    Ending,
    RunExtent,
    SessionReport,
    answer_words,
    failure_lines,
    missed_lines,
    plain_line,
    published_words,
    summary,
    summary_table,
    write_summary,
)
from mqinfer.edge_agent.session import check_resume, run_sessions
from mqinfer.edge_agent.settings import ReplaySettings
from mqinfer.interrupts import until_signal
from mqinfer.judging.settings import RunsAt
from mqinfer.logs import is_json, printable
from mqinfer.metrics.endpoint import serving_metrics
from mqinfer.protocol.errors import ConfigError, ModelNotFound, ModelNotLoadable
from mqinfer.protocol.topics import Topics
from mqinfer.telemetry.exporting import check_endpoint, make_tracer

if TYPE_CHECKING:
    from mqinfer.telemetry.tracer import Tracer

log = logging.getLogger("mqinfer.edge_agent")


def run_replay(
    connection: ConnectionOptions, sending: Sending, settings: ReplaySettings, *, repository: Path | None = None
) -> None:
    """Send the frames, and exit with the code that tells how it went.

    Args:
        connection: To the broker.
        sending: The options.
        settings: What to send, and how. A service waits for the broker, its sources and the models, until a signal.
        repository: Runs the models in this process, without a broker.

    Raises:
        MqinferError: It can't begin.
    """
    models = sending.models.models or [settings.options.model]  # that of a cascade
    address, shown = _address(connection, repository)
    name = connection.name or default_name(address)
    page = ReportFile(sending.outputs.report) if sending.outputs.report else None
    with ExitStack() as signals, ExitStack() as stack:
        tracer = make_tracer("mqinfer-edge", name, check_endpoint(sending.process.otlp_endpoint))
        if tracer is not None:
            stack.callback(tracer.close)
        topics = Topics(connection.root)
        for worker in _local_workers(repository, settings, models, address, topics, tracer):
            stack.enter_context(worker)
        runs: list[ModelRun] = []
        window = settings.options.window
        announcer = ClientAnnouncer(name, topics, str(settings.source), ",".join(models), window=window)
        options, take_over = _client_options(settings, window * len(models)), sending.process.take_over
        client = Unconnected(address, name, topics, options, announcer=announcer, take_over=take_over)
        requester = client.requester
        requester.tracer = tracer
        stack.callback(requester.close)
        stack.callback(announcer.presence.end)
        announcer.pending, announcer.streams = partial(pending_frames, requester, runs), EdgeStreams(runs).read
        metrics = partial(add_edge, requester, runs)
        stack.enter_context(serving_metrics(metrics, sending.process.metrics_port, sending.process.metrics_bind))
        stop = signals.enter_context(until_signal(partial(_unfinished, settings, runs)))
        try:
            reports = run_sessions(
                settings,
                models,
                requester,
                broker=shown,
                stop=stop,
                console=plain_console(stderr=True),
                connect=client.open,
                on_runs=runs.extend,
                observe=page.observe if page else None,
            )
        except ModelNotFound as error:
            raise (None if repository else failed_load(requester, models)) or error from None
    outcome = _report(reports, sending.outputs.summary_file)
    _write_page(page, settings, reports, sending.outputs.summary_file)
    raise typer.Exit(outcome)


def _client_options(settings: ReplaySettings, window: int) -> ClientOptions:
    """Return how requests are sent; with a spool a frame that finds no worker is back before its time is over."""
    usual = ClientOptions(window=window)
    return replace(usual, patience=min(usual.patience, settings.options.timeout / 2)) if settings.spool else usual


def _unfinished(settings: ReplaySettings, runs: Sequence[ModelRun]) -> str:
    """Return what a run that ends at once leaves, and what goes on with it; without a lock."""
    left = f"frames without an outcome: {sum(run.pending for run in runs)}"
    if settings.spool is not None:
        return f"{left}; the next run sends those in the spool"
    try:
        check_resume(replace(settings, outputs=replace(settings.outputs, resume=True)))
    except ConfigError:
        return left
    return f"{left}; --resume goes on with the first of them"


def _address(connection: ConnectionOptions, repository: Path | None) -> tuple[BrokerAddress, str]:
    """Return the broker's address and its name in reports."""
    if repository is not None:
        return local_address(), "local"
    address = connection.address()
    return address, str(address)


def _local_workers(
    repository: Path | None,
    settings: ReplaySettings,
    models: Sequence[str],
    address: BrokerAddress,
    topics: Topics,
    tracer: Tracer | None,
) -> Iterator[AbstractContextManager[object]]:
    """Yield the workers that run in this process; none without a repository."""
    if repository is None:
        return
    version = settings.options.version
    served = [(name, [each or version for each in versions]) for name, versions in versions_of(models).items()]
    small = None if settings.cascade is None else settings.cascade.small
    if small and small.placement is RunsAt.CLOUD:
        served.append((small.model, [small.version]))
    for model, wanted in served:
        yield local_versions(repository, model, wanted, address, topics, tracer)


def failed_load(requester: Requester, models: Sequence[str]) -> ModelNotLoadable | None:
    """Return why a server could not load one of the models; None if no server says so to this client."""
    reasons = Absence(requester).reasons(versions_of(models))
    return ModelNotLoadable(reasons) if reasons else None


def _report(reports: Sequence[SessionReport], summary_file: Path | None) -> ExitCode:
    """Print the tables and why frames failed, write the summary, and return the exit code."""
    console = table_console()
    for report in reports:
        _print_report(console, report, is_titled=len(reports) > 1)
    try:
        if summary_file:
            each = [summary(report) for report in reports]
            write_summary(summary_file, each[0] if len(each) == 1 else {"models": each})
            _print(console, f"wrote {summary_file}")
    finally:
        for report in reports:
            if report.broke_off:
                print_error(report.broke_off)
    return max(_exit_code(report) for report in reports)


def _write_page(
    page: ReportFile | None, settings: ReplaySettings, reports: Sequence[SessionReport], summary_file: Path | None
) -> None:
    if page:
        command, written = ["mqinfer", *sys.argv[1:]], [summary_file] if summary_file else []
        write_report(page.path, settings.describe(), page.runs(reports), command, written)
        _print(table_console(), f"wrote {page.path}")


def _print_report(console: Console, report: SessionReport, *, is_titled: bool) -> None:
    snapshot = report.snapshot
    if is_titled:
        _print(console, f"{report.model} {report.version}".rstrip())
    if is_json():
        log.info("%s", plain_line(snapshot, RunExtent()), extra={"summary": summary(report)})
    else:
        console.print(summary_table(snapshot))
    if words := answer_words(snapshot):
        _print(console, f"answered: {words}")
    for line in failure_lines(snapshot):
        _print(console, line)
    if report.ended is Ending.INTERRUPTED:
        _print(console, f"interrupted before the end: {snapshot.frames_read} frames were read")
    if report.spool_damaged:
        _print(console, f"{report.spool_damaged} frames were damaged in the spool, and set aside there as *.damaged")
    for line in missed_lines(report):
        _print(console, line)
    for what, words in published_words(report).items():
        _print(console, f"{what}: {words}")
    for path in report.files:
        _print(console, f"wrote {path}")


def _print(console: Console, line: str) -> None:
    if is_json():
        log.info("%s", line)
    else:
        console.print(printable(line), soft_wrap=True)


def _exit_code(report: SessionReport) -> ExitCode:
    """Return the code of one model's run; frames that failed count only in a recording that was read to its end."""
    ended, error = report.ended, report.broke_off
    if ended is Ending.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if ended is Ending.INCOMPLETE:
        return ExitCode.INCOMPLETE
    if error:
        return exit_code(error)
    has_failed = report.spool_damaged or (report.snapshot.failed and not report.is_stopped)
    return ExitCode.FAILED if has_failed else ExitCode.OK
