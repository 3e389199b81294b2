"""`mqinfer models push`, `pull` and `withdraw`: a repository that machines share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqinfer.models.repository import publishing, shared

Address = Annotated[str, typer.Argument(help="Shared repository: s3://, gs://, az://, https:// or file://.")]


def push(
    folder: Annotated[Path, typer.Argument(help="A model's folder in a repository: REPOSITORY/MODEL.")],
    url: Address,
) -> None:
    """Upload the versions of a model that a shared repository lacks; workers get one when all of it is there."""
    names = publishing.push(folder, url)
    typer.echo(f"pushed {len(names)} files of {folder.resolve().name} to {url}" if names else "all of it is there")


def pull(
    url: Address,
    directory: Annotated[Path, typer.Argument(help="Model repository: a folder of MODEL/VERSION/FILE.")] = Path(
        "models"
    ),
    model: Annotated[list[str] | None, typer.Option(help="Model to pull; may be repeated. All by default.")] = None,
) -> None:
    """Download models of a shared repository into a folder; versions that are only there stay."""
    shared.pull(url, directory, model or ())
    typer.echo(f"{directory} has what {url} has")


def withdraw(
    url: Address,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    version: Annotated[int, typer.Argument(help="Number of the version.")],
) -> None:
    """Take a version out of a shared repository; workers that look there stop serving it."""
    publishing.withdraw(url, model, version)
    typer.echo(f"{url} has version {version} of {model} no more")
