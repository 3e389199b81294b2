"""Document 004's Table 1: seconds until N_F frames have their answers, of which N_R are from N_S reference servers.

Which frames go to the reference is drawn with a seed, so that the law of the queue is measured and not the luck of a
cascade. Servers sleep in YOLOv2's place, so that many work on few cores: a tenth of the document's time. Pictures have
a tenth of its pixels: all that a frame costs, by JSON too, is a tenth then.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.bench.contestants.servers import serve_gateway
from mqinfer.bench.processes import Program, say, worker_specs
from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.formulas import closed_loop_s, fit_latency
from mqinfer.bench.seeds.noscope.scene import read_scene
from mqinfer.bench.seeds.rows import Measured, of_rounds
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.private import PrivateBroker
from mqinfer.client.client import Client
from mqinfer.client.options import ClientOptions
from mqinfer.cloud_worker.supervision.process import serve
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.images.decode import as_image, to_rgb
from mqinfer.images.picture import CompressedImage
from mqinfer.judging.detector import Detector
from mqinfer.judging.settings import DifferenceDetector
from mqinfer.judging.thumbnail import thumbnail
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, ModelFailed
from mqinfer.protocol.types import Timings

SHARES: Mapping[int, int] = {50: 22, 500: 49, 1000: 117, 2000: 170, 5000: 569}
"""N_R of Table 1 by N_F."""
_USUAL = (50, 500)
_SIDE, _DELAY_MS = 192, 300.0
"""A tenth of 608 x 608 pixels, and of the 3.0 s that a request takes with one server in Table 1."""
_T_DIFF = 15.9
"""The document's 0.000244 of pixels from 0 to 1."""
_LARGE = 500
_WINDOW = 2
_TIMEOUT_S = 600.0
_SEED = 4
_ANSWER = "answer"
"""The timed reference returns this input; what it is belongs to the scene, and not to the time that it takes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to the reference.

    Attributes:
        sent: Bytes of it.
        encode_s: Time of the client to make it, in seconds.
        timings: Where the rest went; None where the transport does not report it.
    """

    sent: int
    encode_s: float
    timings: Timings | None = None


Ask = Callable[[CompressedImage], Asked]


@dataclass(frozen=True, slots=True)
class Asker:
    """A way to ask the reference.

    Attributes:
        name: In the rows; empty for the one of the document.
        is_wide: Whether two requests for each server are in flight at most, and not two for all of them.
        asker: Returns what asks, for a number of servers.
        setting: In the rows.
    """

    name: str
    is_wide: bool
    asker: Callable[[int], Ask]
    setting: str


def _mean_ms(nanoseconds: Iterable[float]) -> float:
    return float(np.mean(list(nanoseconds))) / 1e6


def _about(asked: Sequence[Asked], cpu_s: float) -> str:
    """Return in words what the requests and the client took."""
    text = f"client {cpu_s:.1f} CPU s, sent {sum(each.sent for each in asked) / 1e6:.1f} MB; a request: "
    known = [each.timings for each in asked if each.timings]
    encode = _mean_ms(each.encode_s * 1e9 for each in asked)
    if not known:
        return f"{text}{encode:.0f} ms to write it"
    parts = {
        "T_n": _mean_ms(each.transmission for each in known),
        "T_c.q": encode + _mean_ms(each.client_queue for each in known),
        "T_s.q": _mean_ms(each.server_queue for each in known),
        "T_s.c": _mean_ms(each.server - each.server_queue for each in known),
    }
    return text + ", ".join(f"{name} {value:.0f} ms" for name, value in parts.items())


def prescribed(frames: int, share: int) -> frozenset[int]:
    """Return the numbers of the frames that go to the reference: `share` of them, drawn with a seed."""
    return frozenset(Random(_SEED).sample(range(frames), share))  # noqa: S311 - no secret


def _answer_all(
    frames: Sequence[CompressedImage], asked: frozenset[int], window: int, small: Callable[[Array], object], ask: Ask
) -> tuple[float, str]:
    """Answer frames as the document's client does, `window` callers with one frame at a time each.

    Returns the seconds from the first comparison to the last answer, and in words what they went into.
    """
    detector: Detector[int] = Detector()
    lock, settings = threading.Lock(), DifferenceDetector(_T_DIFF)

    def answer(number: int) -> Asked | None:
        seen = thumbnail(frames[number])
        with lock:
            detector.leader(settings, seen, number)
        small(seen)
        return ask(frames[number]) if number in asked else None

    with ThreadPoolExecutor(window, "mqinfer-bench-caller") as callers:
        cpu, began = time.process_time(), time.perf_counter()
        found = [each for each in callers.map(answer, range(len(frames))) if each]
        return time.perf_counter() - began, _about(found, time.process_time() - cpu)


def table_1(bench: Bench) -> Iterator[Measured]:
    """Measure Table 1: seconds by frames and servers, the document's law fitted, and what a closed loop predicts."""
    counts = bench.frames or (tuple(SHARES) if bench.full else _USUAL)
    if unknown := set(counts) - set(SHARES):
        raise ConfigError(f"Table 1 has no {min(unknown)} frames; expected some of {', '.join(map(str, SHARES))}")
    network = load_model(bench.model("noscope_50_onnx")).backend
    seconds: dict[tuple[int, str], dict[int, float]] = defaultdict(dict)
    with (
        TemporaryDirectory(prefix="mqinfer-bench-") as folder,
        closing(network),
        timed_servers(Path(folder) / "models", _SIDE, _DELAY_MS, bench.replicas) as (client, port),
    ):
        scene = read_scene(bench.source, range(max(counts)), _SIDE, bench.progress)
        name = network.inputs[0].name
        askers = _askers(client, port)
        for count in counts:
            asked = prescribed(count, SHARES[count])
            for servers, each in product(bench.replicas, askers):
                window = _WINDOW * (servers if each.is_wide else 1)
                took, about = _answer_all(
                    scene[:count], asked, window, lambda seen: network.infer({name: seen[None]}), each.asker(servers)
                )
                seconds[count, each.name][servers] = took
                bench.progress(f"  N_F={count} N_S={servers} {each.name or 'as then'}: {took:.1f} s")
                yield _row(count, f"N_S={servers}", each, took, "s", about)
            for each in askers:
                yield from law_rows(count, each, seconds[count, each.name])
    yield from _means({count: seconds[count, ""] for count in counts})
    yield from _simulated(bench.replicas)


def _row(  # noqa: PLR0913, PLR0917 - what a row has
    count: int, row: str, by: Asker, figure: float, unit: str, comment: str = ""
) -> Measured:
    suffix = f", {by.name}" if by.name else ""
    return of_rounds(
        "004.T1", f"N_F={count} {row}{suffix}", [figure], samples=count, comment=comment, setting=by.setting, unit=unit
    )


def law_rows(count: int, by: Asker, seconds: Mapping[int, float]) -> Iterator[Measured]:
    """Yield the fit of L = A + X / N_S, and how well it holds."""
    asked, servers = SHARES[count], sorted(seconds)
    if len(servers) < 2:
        return
    fit = fit_latency(servers, [seconds[each] for each in servers])
    few, many = servers[0], servers[-1]
    ends = fit_latency([few, many], [seconds[few], seconds[many]])
    off = max(abs(fit.latency_s(each) / seconds[each] - 1) for each in servers)
    figures = {
        f"{many} against {few}": (seconds[few] / seconds[many], "x"),
        "A": (fit.fixed_s, "s"),
        "T_sc": (fit.divided_s / asked, "s"),
        "A/N_R": (fit.fixed_s / asked, "s"),
        "T_n + T_c.q": (ends.fixed_s, "s"),
        "T_s.q + T_s.c": (ends.divided_s, "s"),
        f"L/N_R at N_S={few}": (seconds[few] / asked, "s"),
        "largest error of L = A + X/N_S": (100 * off, "%"),
    }
    for row, (figure, unit) in figures.items():
        yield _row(count, row, by, figure, unit)
    for each in servers[1:]:
        yield _row(count, f"speed-up at N_S={each}", by, seconds[few] / seconds[each], "x")


def _means(seconds: Mapping[int, Mapping[int, float]]) -> Iterator[Measured]:
    """Yield the shares, and the means over the numbers of frames from 500 on, as the document's client does it."""
    for count in seconds:
        share = 100 * SHARES[count] / count
        yield of_rounds("004.T1", f"N_F={count} share of the reference", [share], samples=count, comment="prescribed")
    large = {count: each for count, each in seconds.items() if count >= _LARGE and 1 in each}
    for servers in next(iter(large.values()), {}):
        ratios = [each[1] / each[servers] for each in large.values()]
        yield of_rounds("004.T1", f"mean speed-up, N_S={servers}", [float(np.mean(ratios))], samples=len(ratios))
    if {500, 1000} <= large.keys():
        asked = SHARES[1000] / SHARES[500]
        yield of_rounds("004.T1", "N_R of 1000 against 500", [asked], samples=2, comment="prescribed")


def _simulated(replicas: Sequence[int]) -> Iterator[Measured]:
    """Yield the speed-ups of two requests in flight, in simulated time: the reading that needs no slow client."""
    services = [1.0] * 4000
    alone = closed_loop_s(services, 1, _WINDOW)
    comment = "simulated, not measured: constant time of service, two in flight"
    for servers in replicas:
        ways = {"server at random": Random(_SEED), "freest server": None}  # noqa: S311 - no secret
        for way, draw in ways.items():
            gain = alone / closed_loop_s(services, servers, _WINDOW, draw=draw)
            yield of_rounds("004.T1", f"N_S={servers}, {way}", [gain], samples=4000, comment=comment, unit="x")


def _askers(client: Client, port: int) -> tuple[Asker, ...]:
    """Return the ways to ask the servers."""
    of_server, of_all = partial(over_mqtt, client, at_random=True), partial(over_mqtt, client)
    sleeps = f"timed reference of {_DELAY_MS:g} ms, pictures {_SIDE}x{_SIDE}"
    return (
        Asker("", False, partial(over_json, port), f"window 2, JSON floats, server at random; {sleeps}"),
        Asker("as then, jpeg:90", False, of_server, f"window 2, server at random; {sleeps}"),
        Asker("mqinfer", True, of_all, f"window 2 N_S, jpeg:90, expected finish; {sleeps}"),
        Asker("mqinfer, server at random", True, of_server, f"window 2 N_S, jpeg:90; {sleeps}"),
    )


@contextmanager
def timed_servers(
    repository: Path, side: int, delay_ms: float, replicas: Sequence[int]
) -> Iterator[tuple[Client, int]]:
    """Run a broker, timed references and a gateway; yield a client, and the port of TensorFlow Serving's REST API.

    Args:
        repository: Folder for the models.
        side: Of the pictures, in pixels.
        delay_ms: Time of each request.
        replicas: Numbers of servers.
    """
    _write_timed(repository, side, delay_ms, replicas)
    with ExitStack() as stack:
        broker = stack.enter_context(PrivateBroker())
        stack.enter_context(closing(Program(serve_timed, broker.url, repository, *replicas)))
        fronts = stack.enter_context(closing(Program(serve_gateway, broker.url)))
        room = ClientOptions(window=2 * max(replicas))
        client = stack.enter_context(Client(broker.url, options=room))
        yield client, json.loads(fronts.first_line)["tfs-rest"]


def _write_timed(repository: Path, side: int, delay_ms: float, counts: Sequence[int]) -> None:
    image = f'[[input]]\nname = "image"\ndatatype = "FP32"\nshape = [-1, {side}, {side}, 3]\n'
    answer = f'[[input]]\nname = "{_ANSWER}"\ndatatype = "FP32"\nshape = [-1, 1]\n'
    for name in _wanted(counts):
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.echo").write_text(f'delay_ms = {delay_ms:g}\noutput = ["{_ANSWER}"]\n{image}{answer}')
        size = f'[image]\ninput = "image"\nwidth = {side}\nheight = {side}\n'
        (version.parent / "model.toml").write_text(f"max_batch_size = 1\n{size}")


def _drawn(number: int) -> str:
    """Return the model that only server `number` has."""
    return f"server-{number}"


def _shared(servers: int) -> str:
    """Return the model that so many servers have."""
    return f"of-{servers}"


def _wanted(counts: Sequence[int]) -> dict[str, int]:
    """Return the servers of each model: one each, to draw from, and all of a number, to share."""
    return {_drawn(number): 1 for number in range(max(counts))} | {_shared(count): count for count in counts}


def serve_timed(url: str, folder: str, *counts: str) -> None:
    """Run the workers of the timed reference in this process until its standard input ends: they sleep.

    Args:
        url: Of the broker.
        folder: Model repository.
        counts: Numbers of servers.
    """
    models, broker = Repository(folder), BrokerAddress.parse(url)
    with ExitStack() as stack:
        for model, count in _wanted([int(count) for count in counts]).items():
            for spec in worker_specs(models.find(model), broker, count):
                stack.callback(serve(spec).stop)
        say("ready")
        sys.stdin.read()


def over_json(port: int, servers: int) -> Ask:
    """Return what asks TensorFlow Serving's REST API with a frame as numbers of text, as the document's client did."""
    draw = Random(_SEED)  # noqa: S311 - no secret

    def ask(image: CompressedImage) -> Asked:
        began = time.perf_counter()
        pixels = to_rgb(image).astype(np.float32) / np.float32(255)
        body = json.dumps({"inputs": {"image": pixels[None].tolist(), _ANSWER: [[1.0]]}})
        encode_s = time.perf_counter() - began
        with closing(HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)) as connection:
            connection.request("POST", f"/v1/models/{_drawn(draw.randrange(servers))}:predict", body)
            response = connection.getresponse()
            reply = response.read()
        if response.status != 200:
            raise ModelFailed(f"the gateway answered {response.status}: {reply[:500].decode(errors='replace')}")
        json.loads(reply)
        return Asked(len(body), encode_s)

    return ask


def over_mqtt(client: Client, servers: int, encoding: str = "jpeg:90", *, at_random: bool = False) -> Ask:
    """Return what asks over MQTT with an encoded frame; the client chooses the worker, or the worker is drawn."""
    draw = Random(_SEED)  # noqa: S311 - no secret
    contract = client.card(_shared(servers)).image
    if contract is None:
        raise ModelFailed(f"model {_shared(servers)} takes no pictures")
    preparer, answer = Preparer(contract, encoding), np.ones((1, 1), np.float32)

    def ask(image: CompressedImage) -> Asked:
        began = time.perf_counter()
        # Decoded as a frame of a video is: a JPEG as such would travel untouched.
        raw = Frame("", 0, 0, 0, "", as_image(to_rgb(image), "rgb8"))
        tensor = preparer.prepare(raw, lambda _, __: None).tensors[0]
        encode_s = time.perf_counter() - began
        model = _drawn(draw.randrange(servers)) if at_random else _shared(servers)
        result = client.infer(model, {tensor.name: tensor, _ANSWER: answer}, timeout=_TIMEOUT_S, outputs=[_ANSWER])
        return Asked(result.bytes_sent, encode_s, result.timings)

    return ask
