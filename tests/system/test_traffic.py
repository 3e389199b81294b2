"""Two versions that share a model's requests, with real processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqinfer import AsyncClient, Client
from mqinfer.errors import InvalidRequest, ModelNotFound
from mqinfer.models.repository.traffic import Traffic, read_traffic
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENT, wait_until
from tests.system.load import Load, X

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def served(client: Client, count: int = 60, **options: Any) -> Counter[str]:
    """Return how many of so many requests each version answered."""
    return Counter(client.infer("echo", {"x": X}, timeout=60, **options).model_version for _ in range(count))


def follows(client: Client, version: str) -> bool:
    """Wait until the workers' states have reached the client: an order's reply comes over another connection."""
    wait_until(lambda: served(client, 20) == {version: 20})
    return served(client) == {version: 60}


async def ask_for(label: str, url: str, root: str) -> str:
    """Send a request for a label from asyncio; return the version that answered."""
    async with AsyncClient(url, root=root) as client:
        return (await client.infer("echo", {"x": X}, version=label)).model_version


def test_a_canary_from_its_first_request_to_its_rollback(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str
) -> None:
    """A share, all, a rollback, a promotion and its rollback, under load: nothing fails, and all follow each order."""
    repository = write_echo("echo", delay_ms=2)
    server = managed(repository)
    control, root = server.control, server.topics.root
    control.load("echo")
    write_echo("echo", version=2, delay_ms=2)
    with Client(broker_url, root=root, options=PATIENT) as client, Client(broker_url, root=root) as other:
        load = Load(client, window=4)
        try:
            (reply,) = control.traffic("echo", canary=2, share=30)
            assert reply.content["traffic"] == {"1": 70, "2": 30}
            assert reply.content["versions"] == ["1", "2"]
            split = served(other, 200)
            assert 25 <= split["2"] <= 105  # 60 expected, and 6.5 is the standard deviation
            assert served(other, 5, version="canary") == {"2": 5}
            assert served(other, 5, version="stable") == {"1": 5}
            assert other.card("echo").parameters.labels == {"stable": "1", "canary": "2"}
            with pytest.raises(ModelNotFound, match="labelled 'next'"):
                other.infer("echo", {"x": X}, version="next")
            assert asyncio.run(ask_for("canary", broker_url, root)) == "2"
            control.traffic("echo", share=100)
            assert follows(other, "2")
            control.rollback("echo")
            assert follows(other, "1")
            control.traffic("echo", stable=2)
            assert follows(other, "2")
            control.rollback("echo")
            assert follows(other, "1")
        finally:
            results = load.finish()
        counters = client.counters()
    assert counters.outcomes[Outcome.OK] == counters.submitted
    assert {each.model_version for each in results} == {"1", "2"}
    with pytest.raises(InvalidRequest, match="nothing to roll back"):
        control.rollback("echo")
    assert read_traffic(repository / "echo") == Traffic(1)


def test_an_order_that_fails_changes_nothing(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str
) -> None:
    """A version that is not there, or can't be loaded: the file and the processes stay as they are."""
    repository = write_echo("echo")
    server = managed(repository)
    server.control.load("echo")
    server.control.traffic("echo", stable=1)
    write_echo("echo", version=2)
    (repository / "echo" / "2" / "model.echo").write_text("no toml at all", encoding="utf-8")
    with pytest.raises(ModelNotFound, match="no version 9 of it"):
        server.control.traffic("echo", canary=9, share=10)
    with pytest.raises(Exception, match="version 2: model_not_loadable"):
        server.control.traffic("echo", canary=2, share=10)
    assert read_traffic(repository / "echo") == Traffic(1)
    with Client(broker_url, root=server.topics.root) as client:
        assert served(client, 10) == {"1": 10}
        assert client.card("echo").parameters.traffic == {}


def test_servers_that_share_a_repository(write_echo: Callable[..., Path], managed: Callable[..., Any]) -> None:
    """An order that all of them carry out counts once: a rollback goes one step back, not one for each server."""
    for version in (1, 2):
        repository = write_echo("echo", version=version)
    one = managed(repository)
    managed(repository, one.topics)
    one.control.load("echo")  # when this returns, it is ready on both
    one.control.traffic("echo", stable=1)
    replies = one.control.traffic("echo", canary=2, share=10)
    assert [reply.content["traffic"] for reply in replies] == 2 * [{"1": 90, "2": 10}]
    replies = one.control.rollback("echo")
    assert [reply.content["labels"] for reply in replies] == 2 * [{"stable": "1"}]
    assert read_traffic(repository / "echo") == Traffic(1, previous=2)
    assert not list((repository / "echo").glob(".traffic*"))
