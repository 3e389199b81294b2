"""Settings of batching: those that a user would try by hand, and the adaptive one, which needs none.

Each is a contestant of its own: the workload's model once more, with a worker of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from mqinfer.bench.contestants.site import Contestant, Pids, Site
from mqinfer.bench.contestants.ways import Target
from mqinfer.broker.address import BrokerAddress

ADAPTIVE = "adaptive"
ALONE = "max 1"
_DELAY = "dynamic_batching = { max_queue_delay_microseconds = 2000 }\n"
"""How long fixed sizes wait for more."""


def batching_settings(sizes: Sequence[int] = (4, 8, 16)) -> list[Contestant]:
    """Return no batches, these fixed sizes and the adaptive setting."""
    fixed = {f"fixed {size}": f"max_batch_size = {size}\n{_DELAY}" for size in sizes}
    configs = {ALONE: "max_batch_size = 1\n", **fixed, ADAPTIVE: f"max_batch_size = {max(sizes)}\n"}
    ways = enumerate(configs.items())
    return [Contestant(name, partial(_serve, f"setting-{number}", config)) for number, (name, config) in ways]


def _serve(model: str, config: str, site: Site) -> tuple[Target, Pids]:
    """Put the site's model into its repository once more, with these settings, and serve it."""
    workload, broker = site.workload, site.broker
    path = workload.path.parents[2] / model / "1" / workload.path.name
    path.parent.mkdir(parents=True)
    shutil.copy(workload.path, path)
    (path.parents[1] / "model.toml").write_text(config, encoding="utf-8")
    own = replace(workload, model=model, path=path)
    workers = site.serve(own, BrokerAddress.parse(broker.url))
    return Target("mqtt", broker.port, model=model), {"broker": [broker.pid], "worker": workers}
