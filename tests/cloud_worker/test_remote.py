"""Steps of an ensemble that other workers run, over an in-memory broker."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.client import Client, ClientOptions
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.cloud_worker.supervision.process import ProcessSpec, serve
from mqinfer.errors import ConfigError, Expired, ModelNotFound, ModelNotLoadable
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.models.repository.content_hash import content_hash
from mqinfer.protocol.card import ModelCard, card_from_json, card_to_json, with_parameters
from mqinfer.protocol.control import Cancellation
from mqinfer.protocol.envelope import decode_request
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.models.test_ensemble import find, pictures, write_pipeline
from tests.patience import PATIENT

REMOTE = '[parameters]\nremote_steps = "{}"\n'
OUTER = """
platform: "ensemble"
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ 4, 4, 3 ] } ]
output [ { name: "MASK" data_type: TYPE_UINT8 dims: [ 2, 2 ] } ]
max_batch_size: 4
parameters { key: "remote_steps" value: { string_value: "seeing" } }
ensemble_scheduling { step [ {
  model_name: "seeing" model_version: -1
  input_map { key: "IMAGE" value: "IMAGE" } output_map { key: "MASK" value: "MASK" }
} ] }
"""
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Serve = Callable[[Path, str], Worker]


@pytest.fixture
def served(url: str, unique: Callable[[str], str]) -> Iterator[Serve]:
    """Start a worker for one model of a repository: `served(repository, "net")`."""
    with ExitStack() as stack:

        def start(repository: Path, model: str) -> Worker:
            options = WorkerOptions(unique("worker"))
            worker = serve(ProcessSpec(repository, model, 1, BrokerAddress.parse(url), options, device="cpu"))
            stack.callback(worker.stop)
            return worker

        yield start


@pytest.fixture
def apart(tmp_path: Path) -> tuple[Path, Path]:
    """A repository with the pipeline `seeing`, whose network lies in another one."""
    here, there = tmp_path / "here", tmp_path / "there"
    write_pipeline(here)
    there.mkdir()
    (here / "net").rename(there / "net")
    (here / "seeing" / "model.toml").write_text(REMOTE.format("net"))
    return here, there


@contextmanager
def at_the_network(url: str, card: ModelCard) -> Iterator[queue.SimpleQueue[Message]]:
    """Stand where the network's worker is: yield what comes on its topics."""
    link, topics, came = make_link(url, client_id="hand"), Topics(), queue.SimpleQueue[Message]()
    link.open()
    try:
        link.publish(Message(topics.card("net"), card_to_json(card), retain=True))
        for each in (topics.infer_filter("net", "1"), topics.cancel.filter(model="net")):
            link.subscribe(each, came.put)
        yield came
    finally:
        link.close()


def card_of(repository: Path) -> ModelCard:
    """Return the card of the network."""
    model = load_model(find(repository, "net"), device="cpu")
    model.backend.close()
    return model.card


def test_it_equals_the_local_one(url: str, apart: tuple[Path, Path], served: Serve, tmp_path: Path) -> None:
    """The same bits as with all steps in one process; card, batches and statistics tell who runs what."""
    write_pipeline(tmp_path / "whole")
    whole = load_model(find(tmp_path / "whole", "seeing"), device="cpu")
    network = served(apart[1], "net")
    worker = served(apart[0], "seeing")
    warmed_up = network.statistics().inference_count
    with Client(url) as client:
        images = pictures(4)
        expected = whole.backend.infer({"IMAGE": images})
        futures = [client.submit("seeing", {"IMAGE": images[row : row + 1]}) for row in range(4) for _ in range(20)]
        for number, future in enumerate(futures):
            outputs = future.result(60).outputs
            for name, array in expected.items():
                assert np.array_equal(outputs[name][0], array[number // 20])
        card = client.card("seeing")
    assert card.parameters.remote_steps == ("net",)
    assert card_from_json(card_to_json(card)) == card
    assert (card.max_batch_size, card.parameters.device) == (4, "cpu + remote")
    assert {name for name, _, _ in worker.statistics().steps} == {"scale", "most"}
    assert network.statistics().inference_count == warmed_up + 80
    assert content_hash(find(apart[0], "seeing")) == card.parameters.model_hash
    whole.backend.close()


def test_what_goes_along(url: str, apart: tuple[Path, Path], served: Serve) -> None:
    """Deadline, priority and trace of the request go to the step, and so does its end when it is cancelled."""
    with at_the_network(url, card_of(apart[1])) as came:
        with (apart[0] / "seeing" / "model.toml").open("a") as file:
            file.write("[model_warmup]\ncount = 0\n")
        served(apart[0], "seeing")
        with Client(url, name="car-1", options=PATIENT) as client:
            future = client.submit("seeing", {"IMAGE": pictures(1)}, timeout=40, priority=3, traceparent=TRACE)
            message = came.get(timeout=60)
            asked = decode_request(message.payload)
            assert asked.timeout_us is not None
            assert 0 < asked.timeout_us < 40e6
            assert asked.priority == 3
            assert ("traceparent", TRACE) in message.user_properties
            future.cancel()
            while Topics().cancel.filter(model="net")[:-1] not in (message := came.get(timeout=60)).topic:
                pass
            assert Cancellation.from_json(message.payload).ids == (asked.id,)


def test_a_step_that_nobody_runs_is_named(url: str, apart: tuple[Path, Path], served: Serve) -> None:
    """The error has the step and its model, and comes within the request's time."""
    network = served(apart[1], "net")
    served(apart[0], "seeing")
    with Client(url, options=PATIENT) as client:
        assert client.infer("seeing", {"IMAGE": pictures(1)}).outcome is Outcome.OK
        network.stop()
        for _ in range(10):  # on a busy machine the client's own time may be over before the error comes
            with pytest.raises(Expired) as found:
                client.infer("seeing", {"IMAGE": pictures(1)}, timeout=3)
            if "step 3 (model 'net')" in str(found.value):
                break
        else:
            pytest.fail(str(found.value))


@pytest.mark.parametrize("closure", [("seeing",), ("far", "most"), ("scale", "seeing")])
def test_a_circle_is_refused(url: str, apart: tuple[Path, Path], served: Serve, closure: tuple[str, ...]) -> None:
    """A model that asks, at whatever distance, for this ensemble or for a step that it runs itself, is refused."""
    with (
        at_the_network(url, with_parameters(card_of(apart[1]), remote_steps=closure)),
        pytest.raises(ConfigError, match="asks for itself: 'net' is served with the help of"),
    ):
        served(apart[0], "seeing")


def test_what_can_not_be_asked_for(apart: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that no step has, a version that nobody serves, a model that nobody serves, no broker: each is said."""
    seeing = apart[0] / "seeing" / "model.toml"
    with pytest.raises(ModelNotLoadable, match="only a worker can ask others to run its step 'net'"):
        load_model(find(apart[0], "seeing"), device="cpu")
    seeing.write_text(REMOTE.format("net, nut"))
    (problem,) = Repository(apart[0]).problems()
    assert "remote_steps names nut: no step has it" in problem.reason
    seeing.write_text(REMOTE.format("net"))
    spec = ProcessSpec(apart[0], "seeing", 1, BrokerAddress.parse(url), WorkerOptions("w"), device="cpu")
    with monkeypatch.context() as hasty:
        hasty.setattr("mqinfer.cloud_worker.serving.remote._CARD_S", 0.01)
        with pytest.raises(ModelNotFound, match="net"):
            serve(spec)
    pbtxt = apart[0] / "seeing" / "config.pbtxt"
    pbtxt.write_text(pbtxt.read_text().replace("model_version: 1", "model_version: 7"))
    with at_the_network(url, card_of(apart[1])), pytest.raises(ConfigError, match="serve no version 7 of it"):
        serve(spec)


def test_nothing_waits_for_itself(url: str, apart: tuple[Path, Path], served: Serve, tmp_path: Path) -> None:
    """Pipelines that ask pipelines, with more requests than all workers have threads: each is answered."""
    served(apart[1], "net")
    served(apart[0], "seeing")
    outer = tmp_path / "outer"
    (outer / "outer" / "1").mkdir(parents=True)
    (outer / "outer" / "config.pbtxt").write_text(OUTER)
    served(outer, "outer")
    with Client(url, options=ClientOptions(window=100)) as client:
        futures = [client.submit("outer", {"IMAGE": pictures(1)}, timeout=120) for _ in range(200)]
        assert {future.result(120).outcome for future in futures} == {Outcome.OK}
        assert client.card("outer").parameters.remote_steps == ("net", "seeing")
        assert client.card("outer").image == client.card("seeing").image
