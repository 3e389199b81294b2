"""`mqinfer replay` and `mqinfer edge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqinfer.bags.sources import is_live
from mqinfer.cli.edge.running import run_replay
from mqinfer.cli.edge.sending import Sending, make_settings, with_sending
from mqinfer.cli.options import ConnectionOptions, with_connection
from mqinfer.edge_agent.settings import SourceSettings
from mqinfer.logs import without_logins
from mqinfer.protocol.errors import ConfigError


@with_connection
@with_sending
def edge(
    connection: ConnectionOptions,
    sending: Sending,
    source: Annotated[
        list[str],
        typer.Option(
            help="Live source: camera:0, URL of a camera, or ros2:TOPIC; may be repeated. NAME=SOURCE gives its stream "
            "a name."
        ),
    ],
) -> None:
    """Send the frames of live sources to a model until a signal; wait for a broker, source or model that is away."""
    for each in source:
        if not is_live(each):
            raise ConfigError(f"source {without_logins(each)!r} is no live source; for a recording use mqinfer replay")
    run_replay(connection, sending, make_settings(sending, SourceSettings(source, is_service=True)))


@with_connection
@with_sending
def replay(
    connection: ConnectionOptions,
    sending: Sending,
    source: Annotated[
        list[str],
        typer.Argument(
            help="Bag, video, folder of pictures, camera:0, URL of a camera, ros2:TOPIC; several are replayed as one. "
            "NAME=SOURCE gives its stream a name."
        ),
    ],
    local: Annotated[bool, typer.Option("--local", help="Run the model in this process, without a broker.")] = False,
    repository: Annotated[Path, typer.Option(help="Model repository for --local.")] = Path("models"),
    rate: Annotated[
        float | None,
        typer.Option(
            help="Speed: 1 as recorded, 2 twice as fast, 0 as fast as results allow. "
            "By default 1 for a recording with --policy latest, else 0.",
            min=0,
        ),
    ] = None,
    start: Annotated[float, typer.Option(help="Where to start, in seconds after the first frame.", min=0)] = 0,
    duration: Annotated[float | None, typer.Option(help="How much to replay, in seconds; all by default.")] = None,
    loop: Annotated[bool, typer.Option("--loop", help="Start again at the end, until Ctrl-C.")] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run whose results are in --output, where it stopped."),
    ] = False,
) -> None:
    """Send the frames of a recorded drive to a model, and keep the results."""
    frames = SourceSettings(source, rate=rate, start=start, duration=duration, loop=loop)
    settings = make_settings(sending, frames, resumes=resume)
    run_replay(connection, sending, settings, repository=repository if local else None)
