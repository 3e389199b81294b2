"""`mqinfer worker`."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mqinfer.broker import make_link
from mqinfer.cli.options import Broker, CaFile, CertFile, KeyFile, Name, Root, Verbose, address, set_up_logging
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.control_server import ControlServer
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import Topics, check_name

__all__ = ["worker"]

_console = Console(stderr=True)
_STYLES = {"ready": "green", "waiting": "yellow", "failed": "bold red", "crashed": "red"}


def worker(
    repository: Annotated[Path, typer.Option(help="Model repository: a folder of MODEL/VERSION/FILE.")],
    broker: Broker = "mqtt://127.0.0.1:1883",
    model: Annotated[list[str] | None, typer.Option(help="Model to serve; may be repeated. All by default.")] = None,
    instances: Annotated[
        int | None,
        typer.Option(help="Processes for each model version; by default the number in its configuration.", min=1),
    ] = None,
    device: Annotated[str, typer.Option(help="Device for inference: auto, cpu, cuda or cuda:N.")] = "auto",
    name: Name = None,
    capacity: Annotated[
        int, typer.Option(help="Requests that a process accepts at a time; it rejects further ones as busy.", min=1)
    ] = 64,
    threads: Annotated[
        int, typer.Option(help="Threads in each process for decoding, inference and encoding.", min=1)
    ] = 2,
    group: Annotated[
        str,
        typer.Option(
            envvar="MQINFER_GROUP",
            help="Group of workers that share requests. With access rules: a secret that only workers know.",
        ),
    ] = "workers",
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
            "By default 60, or 20 times the usual time of a run if that is longer.",
            min=0,
        ),
    ] = None,
    root: Root = "mqinfer/v1",
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    verbose: Verbose = False,
) -> None:
    """Serve the models of a repository until Ctrl-C, each instance in its own process. See also: `mqinfer models`."""
    set_up_logging(verbose=verbose)
    group = check_name("worker group", group)
    options = WorkerOptions(name or _host_name(), Topics(root), group, capacity, threads=threads)
    spec = ProcessSpec(
        repository=repository,
        model="",
        version=0,
        broker=address(broker, ca_file, cert_file, key_file),
        options=options,
        device=device,
        log_level=logging.DEBUG if verbose else logging.WARNING,
        run_timeout=run_timeout,
    )
    scan = Repository(repository)
    for problem in scan.problems():
        _console.print(f"[bold red]not served[/] {problem.model}: {problem.reason}", highlight=False, soft_wrap=True)
    if poll is not None and not load:
        raise ConfigError("use either --no-load or --poll, not both: --poll loads every model that it finds")
    begins_empty = not load or poll is not None  # the first scan of the repository loads the models
    specs = [] if begins_empty else plan(scan, spec, model or (), instances)
    supervisor = Supervisor(specs, may_idle=True)
    control = ControlServer(
        options,
        lambda client, will, handler: make_link(spec.broker, client_id=client, will=will, on_connection=handler),
        Management(spec, supervisor, instances),
        poll=poll,
        models=model or (),
        on_failure=supervisor.stop,
    )
    supervisor.on_event = _report_to(control)
    signal.signal(signal.SIGTERM, lambda *_: supervisor.stop())
    signal.signal(signal.SIGINT, _stop_or_kill(supervisor))
    control.start()
    try:
        served = supervisor.run()
    finally:
        control.stop()
    if control.failure:
        raise control.failure
    if not served and not begins_empty:
        raise typer.Exit(1)


def _report_to(control: ControlServer) -> Callable[[Event], None]:
    """Return a handler that prints events and reports crashes to the clients."""

    def report(event: Event) -> None:
        control.report(event)
        style = _STYLES.get(event.kind, "dim")
        _console.print(
            f"[{style}]{event.kind:8}[/] {event.worker}: {event.model} {event.detail}", highlight=False, soft_wrap=True
        )

    return report


def _stop_or_kill(supervisor: Supervisor) -> Callable[[int, object], None]:
    """Return a handler that drains the processes, and kills them when it is called again: Ctrl-C twice."""
    calls = count()
    return lambda *_: supervisor.stop(at_once=next(calls) > 0)


def _host_name() -> str:
    """Return a valid worker name from host name and process id."""
    host = re.sub(r"[^a-z0-9-]", "-", socket.gethostname().lower())[:32].strip("-") or "worker"
    return f"{host}-{os.getpid()}"
