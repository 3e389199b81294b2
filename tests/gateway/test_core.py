"""The core before a real server: what there is, what is ready, who is unknown, loads, figures, and errors in words."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mqinfer.client import AsyncClient
from mqinfer.client.control import AsyncControl
from mqinfer.client.dispatch.pending import PendingRequest
from mqinfer.gateway import inference
from mqinfer.gateway.calls import InferCall
from mqinfer.gateway.core import Core
from mqinfer.gateway.errors import Unavailable, status_of
from mqinfer.protocol.card import CardParameters, ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import InvalidRequest, ModelNotFound, ModelNotLoadable, NoWorker
from mqinfer.protocol.types import EncodedTensor, InferRequest, RequestedOutput, TensorSpec
from tests.patience import PATIENCE_S

ROW = np.arange(16, dtype="<i4")[None]


def tensor(name: str, array: Any, datatype: Datatype = Datatype.INT32) -> EncodedTensor:
    """Make a tensor as fronts do."""
    return EncodedTensor(name, datatype, array.shape, "raw", array.tobytes())


def call(model: str = "simple", version: str | None = None, rows: Any = ROW, **options: Any) -> InferCall:
    """Make a call of `simple`, with the same rows twice."""
    return InferCall(model, version, (tensor("INPUT0", rows), tensor("INPUT1", rows)), **options)


async def test_it_knows_what_there_is(core: Core) -> None:
    """Readiness, versions, cards and configurations of the default and of a stated version, leading zeros included."""
    assert core.ready()
    assert core.model_ready("identity_fp32")
    assert (core.model_ready("identity_fp32", "1"), core.model_ready("identity_fp32", "01")) == (True, True)
    assert (core.model_ready("identity_fp32", "3"), core.model_ready("nobody")) == (False, False)
    assert await core.versions("identity_fp32") == {"1": True, "2": True}
    newest, oldest = await core.metadata("identity_fp32"), await core.metadata("identity_fp32", "1")
    assert (newest.version, newest.versions) == ("2", ("1", "2"))
    assert (oldest.version, oldest.versions, oldest.inputs) == ("1", ("1",), newest.inputs)
    config = await core.config("simple")
    assert (config["max_batch_size"], config["input"][0]["dims"], "server" in config) == (8, [16], False)
    assert await core.config("simple") == config  # of before
    json.dumps(config)


async def test_unknown_names_are_answered_at_once(core: Core) -> None:
    """Without a question to anybody: no request is sent, and every call has the words that clients match."""
    unknown = "Request for unknown model: 'nobody' is not found"
    for ask in (core.metadata, core.versions, core.config, core.statistics):
        with pytest.raises(ModelNotFound) as found:
            await ask("nobody")
        assert str(found.value) == unknown
    with pytest.raises(ModelNotFound, match=r"^Request for unknown model: 'simple' version 99 is not found"):
        await core.metadata("simple", "99")
    for model, version, words in (
        ("nobody", None, unknown),
        ("a/b+#\0", None, "Request for unknown model: 'a/b+#\0' is not found"),
        ("", None, "Request for unknown model: '' is not found"),
        ("simple", "99", "Request for unknown model: 'simple' version 99 is not found"),
    ):
        with pytest.raises(ModelNotFound) as found:
            await core.infer(call(model, version))
        assert str(found.value).startswith(words)
        assert status_of(found.value).http == 404
    for wrong in ("wrong_specification", "-1", "1.0", "9" * 5000, "٣"):
        with pytest.raises(InvalidRequest, match=r"^failed to get model version from specified version string '") as e:
            await core.infer(call("simple", wrong))
        assert len(str(e.value)) < 500
    assert core.inference.outcomes == {("", "model_not_found"): 3, ("simple", "model_not_found"): 1} | {
        ("simple", "invalid_request"): 5
    }
    assert core.client.counters().submitted == 0


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (
            [tensor("INPUT0", ROW)],
            "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but",
        ),
        (
            [],
            (
                "expected 2 inputs but got 0 inputs for model 'simple'. Got input(s) [], but missing required input(s) "
                "['INPUT0','INPUT1']. Please"
            ),
        ),
        ([tensor("INPUT0", ROW), tensor("X", ROW)], "unexpected inference input 'X' for model 'simple'"),
        (
            [tensor(name, ROW) for name in ("INPUT0", "INPUT1", "X")],
            "unexpected inference input 'X' for model 'simple'",
        ),
        ([tensor("INPUT0", ROW)] * 2, "input 'INPUT0' already exists in request"),
        ([tensor("INPUT0", ROW)] * 3, "input 'INPUT0' already exists in request"),
        (
            [tensor("INPUT0", ROW), tensor("INPUT1", ROW.astype("<f4"), Datatype.FP32)],
            "inference input 'INPUT1' data-type is 'FP32', but model 'simple' expects 'INT32'",
        ),
        (
            [tensor("INPUT0", ROW[:, :15]), tensor("INPUT1", ROW)],
            "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,15]",
        ),
        (
            [tensor("INPUT0", ROW[0]), tensor("INPUT1", ROW)],
            "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [16]",
        ),
        (
            [EncodedTensor("INPUT0", Datatype.INT32, (-1, 16), "raw", b""), tensor("INPUT1", ROW)],
            "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [-1,16]",
        ),
        (
            [tensor("INPUT0", np.repeat(ROW, 2, 0)), tensor("INPUT1", ROW)],
            "input 'INPUT1' batch size does not match other inputs for 'simple'",
        ),
        (
            [tensor(name, np.repeat(ROW, 9, 0)) for name in ("INPUT0", "INPUT1")],
            "inference request batch-size must be <= 8 for 'simple'",
        ),
        (
            [EncodedTensor("INPUT0", Datatype.INT32, (1, 16), "raw", bytes(60)), tensor("INPUT1", ROW)],
            "input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 60",
        ),
        (
            [EncodedTensor("INPUT0", Datatype.INT32, (2**62, 16), "raw", bytes(64)), tensor("INPUT1", ROW)],
            "input byte size mismatch for input 'INPUT0' for model 'simple'. Expected",
        ),
    ],
)
async def test_wrong_inputs_are_refused_in_tritons_words(core: Core, inputs: list[EncodedTensor], words: str) -> None:
    """By the card, before anything is sent; with the same call made right afterwards."""
    with pytest.raises(InvalidRequest) as found:
        await core.infer(InferCall("simple", None, tuple(inputs)))
    assert str(found.value).startswith(words)
    assert status_of(found.value).grpc == "INVALID_ARGUMENT"
    assert core.client.counters().submitted == 0


async def test_outputs_are_chosen_and_the_worker_decides_the_rest(core: Core) -> None:
    """A subset, top classes, an unknown output; what no card can know comes from the worker in its words."""
    result = await core.infer(call("simple", "1", outputs=(RequestedOutput("OUTPUT1"),)))
    assert list(result.outputs) == ["OUTPUT1"]
    result = await core.infer(call(outputs=(RequestedOutput("OUTPUT0", classification=1),)))
    assert result.outputs["OUTPUT0"].tolist() == [[b"30:15"]]
    with pytest.raises(InvalidRequest, match=r"^unexpected inference output 'OUTPUT7' for model 'simple'"):
        await core.infer(call(outputs=(RequestedOutput("OUTPUT7"),)))
    broken = b"\x09\0\0\0short"
    of = "for inference input 'INPUT0' for model 'identity_bytes'"
    for strings, words in (
        (b"", f"expected 1 string elements {of}, got 0: "),
        (bytes(8), f"unexpected number of string elements 2 {of}, expecting 1: "),
        (broken, "tensor 'INPUT0': lengths of 1 strings"),
    ):
        text = EncodedTensor("INPUT0", Datatype.BYTES, (1, 1), "raw", strings)
        with pytest.raises(InvalidRequest, match=f"^{words}"):
            await core.infer(InferCall("identity_bytes", None, (text,)))
    outcomes = core.inference.outcomes
    assert outcomes["simple", "ok"] == 2
    assert sum(outcomes.values()) == 6
    assert core.inference.admission.running == core.inference.admission.bytes == 0


async def test_statistics_and_index_are_merged(core: Core) -> None:
    """One entry a model version, without the server; the figures rise with the calls."""
    (before,) = await core.statistics("simple")
    await core.infer(call(rows=np.repeat(ROW, 3, 0)))
    async with asyncio.timeout(PATIENCE_S):  # a reply is counted once it is sent
        while (after := (await core.statistics("simple", "1"))[0])["last_inference"] <= before["last_inference"]:
            pass
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] == 1
    assert (after["name"], after["version"], "server" in after) == ("simple", "1", False)
    found = {(each["name"], each["version"]) for each in await core.statistics()}
    assert {("simple", "1"), ("identity_fp32", "1"), ("identity_fp32", "2")} <= found
    index = await core.index()
    assert {("simple", "1", "READY"), ("identity_fp32", "2", "READY")} <= {
        (each["name"], each["version"], each["state"]) for each in index
    }
    assert all(set(each) == {"name", "version", "state", "reason"} for each in index)
    assert [each for each in index if each["state"] == "READY"] == await core.index(only_ready=True)


async def test_models_are_unloaded_and_loaded(core: Core) -> None:
    """Each holds when the call returns; what is gone has no available versions; what can't be loaded says so."""
    await core.unload("identity_bytes")
    assert not core.model_ready("identity_bytes")
    gone = "^Request for unknown model: 'identity_bytes' has no available versions"
    with pytest.raises(ModelNotFound, match=gone):
        await core.metadata("identity_bytes")
    states = {each["name"]: each["state"] for each in await core.index()}
    assert states["identity_bytes"] == "UNAVAILABLE"
    await core.load("identity_bytes")
    assert core.model_ready("identity_bytes")
    assert (await core.metadata("identity_bytes")).name == "identity_bytes"
    await core.unload("nobody")  # nothing happens, as with Triton
    words = r"^failed to load '.*', failed to poll from model repository"
    with pytest.raises(ModelNotLoadable, match=words) as e:
        await core.load("nobody")
    assert status_of(e.value).http == 500  # Triton's
    path, empty = "model name must not contain path traversal characters", "Model name cannot be empty. Please enter"
    unfit = {"a/b": path, "..": path, "": empty, "\t ": empty, "...": "failed to poll", "x" * 100: "failed to poll"}
    for wrong, why in unfit.items():
        with pytest.raises(InvalidRequest, match=f"^failed to load '.*', {why}") as refused:
            await core.load(wrong)
        assert status_of(refused.value).http == 400
        assert "topic" not in str(refused.value)
    with pytest.raises(InvalidRequest, match=r"^failed to load 'simple': parameters are not accepted \(config\)"):
        await core.load("simple", {"config": "{}"})


@pytest.mark.options(strict_readiness=True)
async def test_strict_readiness_means_every_model(core: Core) -> None:
    """With the option, a model that has a card and no worker makes the gateway not ready."""
    assert core.ready()
    card = await core.metadata("simple")
    core._known.put_card("another", card)
    assert not core.ready()


async def test_without_a_server_nothing_is_ready(broker_url: str, unique: Callable[[str], str]) -> None:
    """On an empty site calls end with an error that says so, and none of them waits for a worker."""
    async with AsyncClient(broker_url, root=unique("root")) as client:
        core = Core(client, AsyncControl(client))
        assert not core.ready()
        await core.start()
        assert not core.ready()
        with pytest.raises(ModelNotFound, match="is not found"):
            await core.infer(call())
        for ask in (core.index(), core.statistics(), core.load("simple"), core.unload("simple")):
            with pytest.raises(NoWorker) as found:
                await ask
            assert status_of(found.value).http == 503


async def test_a_model_without_a_worker_is_refused_once_a_restart_would_be_over(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card alone is patience for a while; after it the call ends at once. Servers say of a version: not ready."""
    card = await core.metadata("simple")
    core._known.put_card("another", card)
    for version in (None, card.version):
        with pytest.raises(Unavailable, match=r"^Request for unknown model: 'another'.* is not at ready state"):
            await core.config("another", version)
    monkeypatch.setattr("mqinfer.gateway.inference._RESTART_S", -1.0)
    with pytest.raises(NoWorker, match=r"^Request for unknown model: 'another' is not at ready state"):
        await core.infer(call("another"))
    assert core.client.counters().submitted == 0


async def test_large_replies_on_their_way_are_bounded(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model whose replies fill what a broker queues for one client, as many are asked for as it holds."""
    monkeypatch.setattr(inference, "_MOST_REPLIES", 1)
    await core.infer(call())  # its size is known from here
    assert await running_of(core, 4) == 1


async def running_of(core: Core, count: int) -> int:
    """Have so many calls answered, and return how many of them were sent at once."""
    calls = [asyncio.create_task(core.infer(call())) for _ in range(count)]
    await asyncio.sleep(0)  # each is at its turn now
    running = core.inference.admission.running
    assert running + core.inference.admission.queued == count
    assert len(await asyncio.gather(*calls)) == count
    return running


async def test_replies_of_unknown_size_count_as_the_largest(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that has not answered two calls are sent at once, unless its card tells that its replies are small."""
    monkeypatch.setattr(inference, "_largest_reply", lambda _: inference._UNKNOWN)
    assert await running_of(core, 8) == 2
    assert await running_of(core, 8) == 8
    core.inference._replies.clear()
    monkeypatch.undo()
    assert await running_of(core, 8) == 8


@pytest.mark.parametrize(
    ("rows", "outputs", "expected"),
    [
        (0, [TensorSpec("y", Datatype.FP32, (3, 4)), TensorSpec("z", Datatype.UINT8, (5,))], 3 * 4 * 4 + 5),
        (8, [TensorSpec("y", Datatype.FP32, (-1, 4))], 8 * 4 * 4),
        (8, [TensorSpec("y", Datatype.FP32, (-1, -1))], inference._UNKNOWN),
        (0, [TensorSpec("y", Datatype.BYTES, (1,))], inference._UNKNOWN),
        (8, [TensorSpec("y", Datatype.FP32, (-1, 1 << 40))], inference._UNKNOWN),
    ],
)
def test_what_a_card_tells_of_the_largest_reply(rows: int, outputs: list[TensorSpec], expected: int) -> None:
    """The bytes of all outputs with the most rows; open shapes and strings may have as many as a reply can."""
    parameters = CardParameters(max_batch_size=rows)
    card = ModelCard(name="m", versions=("1",), platform="x", inputs=(), outputs=tuple(outputs), parameters=parameters)
    assert inference._largest_reply(card) == expected
    assert inference._largest_reply(None) == inference._UNKNOWN


async def test_the_largest_reply_counts_for_a_time(core: Core) -> None:
    """A caller who asks for little does not make room for a burst of large replies; one day it is over."""
    core.inference._replies["simple"] = (inference._MOST_REPLIES, math.inf)
    assert await running_of(core, 4) == 1
    assert await running_of(core, 4) == 1
    core.inference._replies["simple"] = (inference._MOST_REPLIES, 0.0)
    await core.infer(call())
    assert await running_of(core, 4) == 4


async def test_lost_replies_leave_their_places(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits no longer for those whose replies the broker has dropped."""
    monkeypatch.setattr(inference, "_MOST_REPLIES", 1)
    monkeypatch.setattr(inference, "_LOOK_S", 0.001)
    lost = core.inference.admission.enter("simple", "a stranger", 1)
    waiting = asyncio.create_task(core.infer(call()))
    await asyncio.sleep(0)
    assert core.inference.admission.queued == 1
    request = InferRequest("lost", "simple", ())
    entry = PendingRequest(request, lambda _: None, submitted=0.0, deadline=0.0)
    core.client.connection.requester._dispatcher.table.withheld["lost"] = entry
    await waiting
    core.inference.admission.leave(lost)
