"""`mqinfer cascade`: the cascades of edges."""

from __future__ import annotations

import typer

from mqinfer.cli.edge.learning import calibrate, report, train
from mqinfer.cli.edge.steering import change, show

app = typer.Typer(no_args_is_help=True)
for each in (train, calibrate, report, show):
    app.command()(each)
app.command("set")(change)
