"""`mqinfer edge`."""

from __future__ import annotations

from typing import Annotated

import typer

from mqinfer.bags.sources import is_live
from mqinfer.cli.edge.running import run_replay
from mqinfer.cli.edge.sending import Sending, make_settings, with_sending
from mqinfer.cli.options import ConnectionOptions, with_connection
from mqinfer.edge_agent.settings import SourceSettings
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
            raise ConfigError(f"source {each!r} is no live source; for a recording use mqinfer replay")
    run_replay(connection, sending, make_settings(sending, SourceSettings(source, is_service=True)))
