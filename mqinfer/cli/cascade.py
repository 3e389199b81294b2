"""`mqinfer cascade`: the cascades of edges."""

from __future__ import annotations

import typer

from mqinfer.cli.edge.learning import calibrate, report, train
from mqinfer.cli.edge.steering import change, show

app = typer.Typer(
    help="Make a cascade: train its small model, choose its thresholds. Read and change one that runs.",
    no_args_is_help=True,
)
for each in (train, calibrate, report, show):
    app.command()(each)
app.command("set")(change)
