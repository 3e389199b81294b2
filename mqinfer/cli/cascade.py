"""`mqinfer cascade`: the cascades of edges."""

from __future__ import annotations

import typer

from mqinfer.cli.edge.learning import calibrate, report, train
from mqinfer.cli.edge.steering import change, show
from mqinfer.cli.options import with_log_options

__all__ = ["app"]

app = typer.Typer(
    help="Make a cascade: train its small model, choose its thresholds. Read and change one that runs.",
    no_args_is_help=True,
)
for each in (train, calibrate, report):
    app.command()(with_log_options(each))
app.command()(show)
app.command("set")(change)
