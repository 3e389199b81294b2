"""What a caller of gRPC makes the gateway hold before anybody has decided about its call, and while it arrives."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from mqinfer.gateway.access import GRANTED, Access
from mqinfer.web.keys import KeyFile
from mqinfer.web.unsent import Unsent
from tests.gateway.grpc_front import SERVICE, serving

KEYS = '[ann]\nkey = "8f1c0a5be2d94b7f9a36"\nrights = ["infer", "metadata"]\n'
NO_CORE: Any = SimpleNamespace(unsent=Unsent(logging.getLogger("mqinfer.gateway"), 1 << 20, 60.0))
"""No call of these tests gets as far as that."""


@pytest.fixture
def access(tmp_path: Path) -> Access:
    """Return who may call: those with a key."""
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    path.chmod(0o600)
    return Access(KeyFile(path, GRANTED))


async def failure(call: Any) -> tuple[str, str]:
    """Return status and text of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details()


@pytest.mark.parametrize("method", ["ModelInfer", "ServerMetadata", "RepositoryModelLoad"])
async def test_decided_before_the_message_is_there(access: Access, method: str) -> None:
    """A caller without a key is refused before it has sent a byte of its request."""
    async with serving(NO_CORE, access) as front:
        call = front.channel.stream_unary(f"/{SERVICE}/{method}")(timeout=60)
        assert (await failure(call))[0] == "UNAUTHENTICATED"


async def test_a_call_without_a_message() -> None:
    """A call that ends without a request is told so."""
    async with serving(NO_CORE) as front:
        call = front.channel.stream_unary(f"/{SERVICE}/ServerReady")(timeout=60)
        await call.done_writing()
        status, text = await failure(call)
        assert status == "INVALID_ARGUMENT"
        assert "send one message" in text
