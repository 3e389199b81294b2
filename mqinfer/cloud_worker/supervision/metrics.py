"""The metrics of a server: what its processes have counted, and the processes themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress

from mqinfer.cloud_worker.supervision.child import Phase, ProcessView
from mqinfer.cloud_worker.supervision.control_server import ControlServer
from mqinfer.cloud_worker.supervision.statistics import ServerStatistics
from mqinfer.cloud_worker.supervision.supervisor import Supervisor
from mqinfer.metrics.client import add_connection
from mqinfer.metrics.inference import add_inference
from mqinfer.metrics.process_usage import usage
from mqinfer.metrics.samples import Samples
from mqinfer.protocol.errors import Cancelled

_PATIENCE_S = 5.0
"""How long a scrape waits for the supervisor, which asks its processes within a second."""


def add_server(supervisor: Supervisor, control: ControlServer, samples: Samples, *, triton: bool = False) -> None:
    """Add the metrics of a server, where `triton` is set those of inference under Triton's names, too."""
    add_connection(samples, connected=control.connected)
    for reason, count in list(control.dropped.items()):
        samples.count("control_dropped", "Control messages that were dropped.", count, reason=reason)
    phases = Counter((view.spec.model, str(view.spec.version), view.state) for view in supervisor.processes)
    for (model, version, phase), count in phases.items():
        labels = {"model": model, "version": version, "state": phase}
        samples.gauge("worker_processes", "Processes of a model version.", count, **labels)
    _add_labels(samples, supervisor.processes)
    _add_usage(samples, supervisor.processes, supervisor.pids)
    with suppress(Cancelled, TimeoutError):  # the server is starting or stopping
        _add(samples, supervisor.statistics(), triton=triton)


def is_ready(supervisor: Supervisor, control: ControlServer) -> bool:
    """Return whether a server is connected and serves each of its models by one process at least; false without any."""
    views = [view for view in supervisor.processes if view.phase is not Phase.DRAINING]
    ready = {view.spec.model for view in views if view.state is Phase.READY}
    return control.connected and bool(ready) and ready == {view.spec.model for view in views}


def _add_labels(samples: Samples, processes: Iterable[ProcessView]) -> None:
    """Add what part of the requests without a version each labelled version gets."""
    text = "Part of the requests without a version that a labelled version gets."
    policies = {view.spec.model: view.spec.traffic for view in processes if view.spec.traffic}
    for model, traffic in policies.items():
        shares = traffic.shares or {traffic.labels.get("stable", ""): 100}
        for label, version in traffic.labels.items():
            ratio = shares.get(version, 0) / 100
            samples.gauge("model_traffic_ratio", text, ratio, model=model, version=version, label=label)


def _add_usage(samples: Samples, views: Iterable[ProcessView], pids: Mapping[str, int]) -> None:
    """Add what each process uses, once for a process that several models share, which has no model then."""
    models = {view.spec.options.name: (view.spec.model, str(view.spec.version)) for view in views}
    sharing = Counter(pids.values())
    shown: set[int] = set()
    for name, found in usage(pids).items():
        if found.pid in shown:
            continue
        shown.add(found.pid)
        model, version = models.get(name, ("", "")) if sharing[found.pid] == 1 else ("", "")
        labels = {"process": name, "model": model, "version": version}
        samples.count("worker_process_cpu_seconds", "CPU time of a process.", found.cpu_s, **labels)
        text = "Resident memory of a process."
        samples.gauge("worker_process_resident_memory_bytes", text, found.memory_bytes, **labels)
        if found.gpu_memory_bytes:
            text = "Memory of a process on all GPUs."
            samples.gauge("worker_process_gpu_memory_bytes", text, found.gpu_memory_bytes, **labels)
            text = "Share of the time, of one GPU, in which a process ran something there."
            samples.gauge("worker_process_gpu_utilization_ratio", text, found.gpu_ratio, **labels)


def _add(samples: Samples, asked: Future[ServerStatistics], *, triton: bool) -> None:
    found = asked.result(_PATIENCE_S)
    models = {(model, str(version)): each for (model, version), each in found.totals.items()}
    add_inference(samples, models, triton=triton)
    for model, version in found.totals:
        text, count = "Processes that have crashed.", found.crashes.get((model, version), 0)
        samples.count("worker_crashes", text, count, model=model, version=str(version))
    text = "Processes that did not reply to this scrape; their last figures are in it."
    samples.gauge("worker_silent_processes", text, len(found.missing))
