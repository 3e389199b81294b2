"""A replay asks the servers why nobody serves its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.edge.running import failed_load
from mqinfer.protocol.topics import Topics

pytestmark = pytest.mark.broker


def test_the_reason_of_a_server_is_reported(
    managed: Callable[..., Any], write_echo: Callable[..., Path], broker_url: str, unique: Callable[[str], str]
) -> None:
    """The model's file is broken: the message names server, model and reason; of a model unknown to all nothing."""
    repository = write_echo("good")
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.echo").write_text("this is [no file of a model")
    server = managed(repository, Topics(unique("test")))
    address = BrokerAddress.parse(broker_url)
    while (event := server.events.get(timeout=60)).kind not in {"waiting", "failed"}:
        pass
    error = failed_load(address, unique("edge"), server.topics.root, ["broken"])
    assert error is not None, event
    assert f"server {server.name} can't load model 'broken': " in str(error)
    assert failed_load(address, unique("edge"), server.topics.root, ["good", "unknown"]) is None
