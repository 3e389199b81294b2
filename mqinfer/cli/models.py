"""`mqinfer models`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqinfer.cli.management import add_to
from mqinfer.cli.optimize import optimize
from mqinfer.cli.options import Verbose, set_up_logging
from mqinfer.cli.profile import profile

__all__ = ["app"]

app = typer.Typer(help="Model repository.", no_args_is_help=True)
add_to(app)
app.command()(optimize)
app.command()(profile)


@app.command()
def build(
    directory: Annotated[Path, typer.Argument(help="Folder of the model repository.")] = Path("models"),
    model: Annotated[list[str] | None, typer.Option(help="Build only this one; may be repeated.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="Only say what can be built.")] = False,
    verbose: Verbose = False,
) -> None:
    """Build the networks of the field into a model repository; what is there already is left alone."""
    from mqinfer.lab import zoo
    from mqinfer.lab.drives.lessons import lesson_drive, lessons_key
    from mqinfer.lab.drives.synthetic import CLASSES

    set_up_logging(verbose=verbose)
    if listing:
        for name, purpose in zoo.catalogue().items():
            typer.echo(f"{name:40} {purpose}")
        return
    lessons = zoo.Lessons(lesson_drive, CLASSES, lessons_key())
    for built in zoo.build(directory, model, lessons=lessons, progress=typer.echo):
        typer.echo(f"{built.path}")
