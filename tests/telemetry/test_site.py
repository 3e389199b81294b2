"""Traces of a whole site: edge, gateway and worker are the commands, the broker is Mosquitto, spans come over OTLP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.presence import make_client_id
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.topics import Topics
from tests.ports import free_port
from tests.telemetry.collector import Collected, Collector, collecting

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # programs
FRAMES, TOPICS = 4, 2
"""Frames of the drive, on so many topics each."""
PATIENCE_S = 120.0
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PAIRS = "max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 300000 }\n"


@dataclass(frozen=True, slots=True)
class Site:
    """A worker and a gateway that export to a collector."""

    broker: str
    root: str
    http: int
    grpc: int
    tfs_rest: int
    collector: Collector

    def run(self, *command: str) -> str:
        """Run a command of mqinfer to its end, and return what it logs."""
        done = subprocess.run(
            [sys.executable, "-m", "mqinfer", *command, "--broker", self.broker, "--root", self.root],
            capture_output=True, text=True, check=True, env=os.environ | {"OTEL_BSP_SCHEDULE_DELAY": "60000"},
        )  # fmt: skip
        return done.stderr


def write_model(repository: Path, name: str, kind: str, shape: str) -> None:
    """Write a model that returns its input, in batches of two where there are two."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(PAIRS)
    (repository / name / "1" / "model.echo").write_text(
        f'[[input]]\nname = "x"\ndatatype = "TYPE_{kind}"\nshape = {shape}\n'
    )


@pytest.fixture(scope="module")
def site(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Start the programs; they end with the last test of this file."""
    repository, root = tmp_path_factory.mktemp("repository"), f"traces-{os.getpid()}"
    write_model(repository, "image", "UINT8", "[-1, 8, 12, 3]")
    write_model(repository, "numbers", "FP32", "[-1, 4]")
    ports = {name: free_port() for name in ("http", "grpc", "tfs-rest")}
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())
        env = os.environ | {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}

        def start(*command: str) -> None:
            common = ("--broker", broker_url, "--root", root)
            process = subprocess.Popen([sys.executable, "-m", "mqinfer", *command, *common], env=env)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start("worker", "--repository", str(repository), "--name", "traced")
        options = [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
        start("gateway", *options, "--metrics-port", "0", "--tfs-grpc-port", "0", "--name", "gate")
        made = Site(broker_url, root, ports["http"], ports["grpc"], ports["tfs-rest"], collector)
        for model in ("image", "numbers"):
            wait_for(f"http://127.0.0.1:{made.http}/v2/models/{model}/ready")
        yield made


def wait_for(url: str) -> None:
    """Ask until the answer is good: programs that run elsewhere have no event to wait for."""
    end = time.monotonic() + PATIENCE_S
    while True:
        with suppress(URLError, ConnectionError), urlopen(url, timeout=PATIENCE_S):  # noqa: S310 - of this machine
            return
        assert time.monotonic() < end, url
        time.sleep(0.05)


def shape(spans: list[Collected], root: Collected) -> dict[str, list[str]]:
    """Return the sorted names below each span of a tree, by first words; `process` has its service with it."""
    found: dict[str, list[str]] = {}
    pending = [root]
    while pending:
        span = pending.pop()
        below = [each for each in spans if each.parent == span.id]
        assert {each.trace for each in below} <= {span.trace}
        if below:
            found[word(span)] = sorted(map(word, below))
        pending += below
    return found


def word(span: Collected) -> str:
    """Return a span's name without model and topic."""
    return span.name if span.name == "worker queue" else span.name.split()[0]


WORKED = {
    "transmit": ["process"],
    "process": ["batch", "decode", "encode", "postprocess", "worker queue", "worker queue"],
    "batch": ["run"],
}
ASKED = {"infer": ["queue", "settle", "transmit"], **WORKED}


def without_preprocess(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Leave out a stage that only pictures pass."""
    return {name: [each for each in below if each != "preprocess"] for name, below in found.items()}


def test_a_trace_of_a_replayed_frame_holds_every_span(site: Site, tmp_path: Path) -> None:
    """Each is where it belongs, batches link to the requests that ran with them, and no frame lacks a trace."""
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=FRAMES, seed=3, width=48, height=32)
    log = site.run("replay", str(drive), "--model", "image", "--name", "car", "--otlp-endpoint", site.collector.url)

    whole = {"frame": ["demosaic", "encode", "infer", "queue", "resize"], **ASKED}

    def is_complete(spans: list[Collected]) -> bool:
        frames = [each for each in spans if each.name == "frame"]
        return sum(without_preprocess(shape(spans, each)) == whole for each in frames) >= FRAMES * TOPICS

    spans = site.collector.wait_for(is_complete)
    frames = [each for each in spans if each.name == "frame"]
    processes = {(each.trace, each.id): each for each in spans if word(each) == "process"}

    assert "spans" not in log
    assert len(frames) == len({each.trace for each in frames}) == FRAMES * TOPICS
    for frame in frames:
        assert (frame.parent, frame.service, frame.attributes["mqinfer.outcome"]) == ("", "mqinfer-edge", "ok")
        of_trace = [each for each in spans if each.trace == frame.trace]
        services = Counter(each.service for each in of_trace)
        assert services == {"mqinfer-edge": 9, "mqinfer-worker": len(of_trace) - 9}
        assert all(each.start <= each.end for each in of_trace)
    batches = [each for each in spans if each.name == "batch" and each.trace in {frame.trace for frame in frames}]
    assert len(batches) == FRAMES * TOPICS
    linked = {(processes[link].trace, own.trace) for own in batches for link in own.links}
    assert linked, "no two frames were in one batch"
    assert linked == {(other, own) for own, other in linked}, "a link that its other end does not have"
    assert all(own != other for own, other in linked)
    for each in batches:
        assert each.attributes["messaging.batch.message_count"] == 1 + len(each.links)


def post(port: int, path: str, body: object, headers: dict[str, str]) -> None:
    """Send JSON."""
    url = f"http://127.0.0.1:{port}{path}"
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=PATIENCE_S):
        pass


def over_http(site: Site, headers: dict[str, str]) -> None:
    """Call by the Open Inference Protocol over HTTP."""
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    post(site.http, "/v2/models/numbers/infer", {"inputs": [x]}, headers)


def over_grpc(site: Site, headers: dict[str, str]) -> None:
    """Call by the Open Inference Protocol over gRPC."""
    import grpc

    from mqinfer.gateway.messages import message_class

    x = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    raw = [np.ones(4, np.float32).tobytes()]
    request = message_class("inference.ModelInferRequest")(model_name="numbers", inputs=[x], raw_input_contents=raw)
    with grpc.insecure_channel(f"127.0.0.1:{site.grpc}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        call(request.SerializeToString(), metadata=tuple(headers.items()), timeout=PATIENCE_S)


def over_tensorflow_rest(site: Site, headers: dict[str, str]) -> None:
    """Call by TensorFlow Serving's REST API."""
    post(site.tfs_rest, "/v1/models/numbers:predict", {"instances": [[1, 2, 3, 4]]}, headers)


@pytest.mark.parametrize("call", [over_http, over_grpc, over_tensorflow_rest])
def test_a_callers_trace_goes_through_the_gateway_to_the_worker(
    site: Site, call: Callable[[Site, dict[str, str]], None]
) -> None:
    """The header's trace holds the gateway's spans and the worker's, the first of them below the header's span."""
    trace = f"{call.__name__}".encode().hex().ljust(32, "0")[:32]
    call(site, {"traceparent": f"00-{trace}-{SPAN}-01", "tracestate": "vendor=x"})

    def of_call(spans: list[Collected]) -> list[Collected]:
        return [each for each in spans if each.trace == trace]

    def is_complete(spans: list[Collected]) -> bool:
        found = of_call(spans)
        return {"call": ["infer"], **ASKED} in [shape(found, each) for each in found if each.name == "call"]

    spans = of_call(site.collector.wait_for(is_complete))
    (root,) = (each for each in spans if each.name == "call")
    assert (root.parent, root.kind, root.service) == (SPAN, "SERVER", "mqinfer-gateway")


@pytest.mark.parametrize("flags", ["00", "zz"])
def test_a_caller_decides_whether_its_trace_is_exported(site: Site, flags: str) -> None:
    """One that is not sampled is not; a malformed header is ignored, so the call has a trace of its own."""
    before = len(site.collector.wait_for(lambda _: True))
    trace = ("ab" if flags == "00" else "cd") * 16
    over_http(site, {"traceparent": f"00-{trace}-{SPAN}-{flags}"})
    over_http(site, {})  # whose spans come behind those of the first

    def calls(spans: list[Collected]) -> int:
        return sum(each.name == "call" for each in spans[before:])

    spans = site.collector.wait_for(lambda all_: calls(all_) >= (1 if flags == "00" else 2))
    assert trace not in {each.trace for each in spans}
    assert calls(spans) == (1 if flags == "00" else 2)


def test_the_property_is_on_the_wire_both_ways(site: Site) -> None:
    """A context travels unchanged, from a Python client and from one of JSON; a reply repeats it, or has none."""
    topics, seen = Topics(site.root), SimpleQueue[Message]()
    link = make_link(site.broker, client_id=make_client_id("spy"))
    link.open(PATIENCE_S)
    try:
        for topic_filter in (
            f"{site.root}/workers/+/infer/numbers/wire",
            f"{site.root}/models/numbers/infer/wire",
            topics.result.filter(client="wire"),
        ):
            link.subscribe(topic_filter, seen.put)
        good = {"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "vendor=x"}
        with Client(site.broker, name="wire", root=site.root) as client:
            for options in (good, {"traceparent": "no"}, {}):
                client.infer("numbers", {"x": np.ones((1, 4), np.float32)}, timeout=PATIENCE_S, **options)  # type: ignore[arg-type]
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
        topic, answer = topics.infer("numbers", "wire"), topics.result("numbers", "wire", "json")
        link.publish(Message(topic, body.encode(), response_topic=answer, user_properties=tuple(good.items())))
        messages = [seen.get(timeout=PATIENCE_S) for _ in range(8)]
    finally:
        link.close()
    found = [[(name, value) for name, value in each.user_properties if name != "xxh3"] for each in messages]
    assert found[:2] == [list(good.items())] * 2
    assert found[2:6] == [[]] * 4
    assert found[6:] == [list(good.items())] * 2
    assert all([name for name, _ in each.user_properties][-1] == "xxh3" for each in messages[:6])
