"""`mqinfer worker`."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from mqinfer import logs
from mqinfer.broker.connect import make_link, resolve
from mqinfer.cli.exit_codes import ExitCode
from mqinfer.cli.options import (
    ConnectionOptions,
    MetricsBind,
    MetricsPort,
    OtlpEndpoint,
    TakeOver,
    TritonMetrics,
    with_connection,
    with_group,
)
from mqinfer.cloud_worker.serving.options import ServingOptions, WorkerOptions
from mqinfer.cloud_worker.supervision.autoscaling import Autoscaler, Bounds
from mqinfer.cloud_worker.supervision.canary import CanaryWatch
from mqinfer.cloud_worker.supervision.control_server import LOOK_S, ControlServer
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.cloud_worker.supervision.metrics import add_server, is_ready
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Supervisor
from mqinfer.interrupts import on_stop
from mqinfer.metrics.endpoint import LOOPBACK, serving_metrics
from mqinfer.models.repository import Repository
from mqinfer.models.repository.shared import local_copy
from mqinfer.protocol.errors import ConfigError, NotAuthorized
from mqinfer.protocol.topics import Topics, check_name
from mqinfer.telemetry.exporting import check_endpoint

_log = logging.getLogger("mqinfer.cloud_worker")
_END_S = 60
"""The system ends the command so long after SIGTERM, whatever it hangs in; its processes then drain by themselves."""


@with_connection
@with_group("serving", ServingOptions)
def worker(
    connection: ConnectionOptions,
    serving: ServingOptions,
    repository: Annotated[
        str,
        typer.Option(
            help="Model repository: a folder of MODEL/VERSION/FILE, or the address of one that machines share: "
            "s3://, gs://, az://, https:// or file://."
        ),
    ],
    model: Annotated[list[str] | None, typer.Option(help="Model to serve; may be repeated. All by default.")] = None,
    instances: Annotated[
        int | None,
        typer.Option(help="Processes for each model version; by default the number in its configuration.", min=1),
    ] = None,
    autoscale: Annotated[
        str | None,
        typer.Option(
            metavar="LEAST..MOST",
            help="Processes for each model version, as many as its load needs, such as 1..8; 0..8 begins with one.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Device for inference: auto, cpu, cuda or cuda:N.")] = "auto",
    take_over: TakeOver = False,
    load: Annotated[
        bool, typer.Option(help="Load the models at the start; with --no-load they wait for `mqinfer models load`.")
    ] = True,
    poll: Annotated[
        float | None, typer.Option(help="Scan the repository for changes every N seconds.", min=0.1)
    ] = None,
    run_timeout: Annotated[
        float | None,
        typer.Option(
            help="Kill and restart a process if a request does not end within N seconds; 0 for never. "
            "By default 60, or 20 times the usual time of a run if that is longer. A model may load for 600 seconds, "
            "or for N if that is longer.",
            min=0,
        ),
    ] = None,
    models_per_process: Annotated[
        int,
        typer.Option(
            help="Small models on a CPU that share a process where more than 32 would run; 1 for none.", min=1, max=64
        ),
    ] = 16,
    metrics_port: MetricsPort = None,
    metrics_bind: MetricsBind = LOOPBACK,
    triton_metrics: TritonMetrics = False,
    otlp_endpoint: OtlpEndpoint = None,
) -> None:
    """Serve the models of a repository until Ctrl-C, each instance in its own process unless they are many."""
    where = resolve(connection.address())
    name = connection.name or where.login_name or _host_name()
    check_name("worker group", serving.group)
    options = WorkerOptions(name, Topics(connection.root), **asdict(serving))
    logs.rename_process(name)
    if poll is not None and not load:
        raise ConfigError("use either --no-load or --poll, not both: --poll loads every model that it finds")
    bounds, instances = _bounds(autoscale, instances)
    with local_copy(repository, poll) as (folder, install):
        spec = ProcessSpec(
            repository=folder,
            model="",
            version=0,
            broker=where,
            options=options,
            device=device,
            logs=logs.settings(),
            run_timeout=run_timeout,
            otlp=check_endpoint(otlp_endpoint),
            share_with=models_per_process,
        )
        models = model or ()
        begins_empty = not load or poll is not None  # the first scan of the repository loads the models
        supervisor = Supervisor(_first_processes(spec, models, instances, load=not begins_empty), may_idle=True)
        management = Management(spec, supervisor, instances, install, scales=bounds is not None)
        control = ControlServer(
            options,
            lambda client, will, handler: make_link(spec.broker, client_id=client, will=will, on_connection=handler),
            management,
            follows_clients=bounds is not None,
            on_failure=supervisor.stop,
        )
        control.repeat(LOOK_S, CanaryWatch(supervisor, management).look)
        _repeat(control, management, bounds, name, poll, models)
        supervisor.on_event = control.report
        _stop_on_signals(supervisor)
        metrics = partial(add_server, supervisor, control, triton=triton_metrics)
        ready = partial(is_ready, supervisor, control)
        with serving_metrics(metrics, metrics_port, metrics_bind, is_ready=ready):
            control.start(take_over=take_over)
            try:
                served = supervisor.run()
            finally:
                control.stop()
        if control.failure:
            raise control.failure
        if not served and not begins_empty:
            raise typer.Exit(_why_none_served(supervisor))


def _bounds(autoscale: str | None, instances: int | None) -> tuple[Bounds | None, int | None]:
    """Return between which numbers of processes a model is scaled, and with how many it begins."""
    if autoscale is None:
        return None, instances
    if instances is not None:
        raise ConfigError("use either --instances or --autoscale, not both")
    bounds = Bounds.parse(autoscale)
    return bounds, max(1, bounds.least)


def _repeat(
    control: ControlServer,
    management: Management,
    bounds: Bounds | None,
    name: str,
    poll: float | None,
    models: Sequence[str],
) -> None:
    if poll is not None:
        control.poll(poll, models)
    if bounds is not None:
        control.repeat(LOOK_S, Autoscaler(bounds, name, management, control.known).look)


def _why_none_served(supervisor: Supervisor) -> ExitCode:
    refused = f"{NotAuthorized.code}:"  # as each process reports it
    is_refused = any(refused in view.reason for view in supervisor.processes)
    return ExitCode.REFUSED if is_refused else ExitCode.FAILED


def _first_processes(
    template: ProcessSpec, models: Sequence[str], instances: int | None, *, load: bool
) -> list[ProcessSpec]:
    """Report what in the repository can't be served, and plan the processes for the rest; none unless `load`."""
    repository = Repository(template.repository)
    for problem in repository.problems():
        _log.error("not served: %s: %s", problem.model, problem.reason, extra={"model": problem.model})
    return plan(repository, template, models, instances) if load else []


def _stop_on_signals(supervisor: Supervisor) -> None:
    """Drain the processes on SIGTERM and SIGINT; a second SIGINT (Ctrl-C twice) kills them."""

    def stop() -> None:
        supervisor.stop()
        signal.alarm(_END_S)

    def unfinished() -> str:
        killed = len(set(supervisor.pids.values()))
        return f"worker processes killed: {killed}; clients send the requests of these to other workers"

    on_stop(stop, unfinished)


def _host_name() -> str:
    """Return a valid worker name from host name and process id."""
    host = re.sub(r"[^a-z0-9-]", "-", socket.gethostname().lower())[:32].strip("-") or "worker"
    return f"{host}-{os.getpid()}"
