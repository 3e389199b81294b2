"""Counts what one request and one frame pass through: calls of mqinfer's functions, and files.

Client, worker, gateway and replay run in processes of their own with a profile function in every thread
(`sys.setprofile`). It makes them several times slower, so nothing is timed here. The numbers that a request and a frame
may take are kept in `golden_calls.json`.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial, reduce
from io import StringIO
from operator import or_
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType

import mqinfer
from mqinfer.bench.contestants.servers import OPTIONS, serving
from mqinfer.bench.contestants.ways import INFER, request_maker
from mqinfer.bench.processes import Program
from mqinfer.bench.workloads import Workload, load_workloads
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.client import Client
from mqinfer.client.result import InferResult
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.process import ProcessSpec, serve
from mqinfer.edge_agent.sinks.factory import DEFAULT_SINKS
from mqinfer.extras import import_extra
from mqinfer.lab.drives.recording import write_drive
from mqinfer.lab.machine import describe_machine
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, Grid, machine_sentence

_WARM_UP, _REQUESTS = 50, 200
_FRAMES = 20
_REGULAR = 0.5
"""A function belongs to the path if `its calls / requests` is at least this; a heartbeat's functions do not."""
_SLOWER = 10
"""A worker takes about this many times as long under the profile; its bound for short work is raised by as much, so
that a request takes the same way as without it."""
_PACKAGE = Path(mqinfer.__file__).parent
_NOT_OURS = ("/", "bench/")
"""How files outside the package begin, and those that send the requests."""

TOLERANCE = 0.03
"""Greatest share by which a figure may exceed the golden one; fewer calls are held by `--write`."""
_BY_CHANCE = 0.12
"""The same for the calls in `broker/`: a packet that arrives with the one before it needs no wake-up of its own."""
_BROKER = "calls in broker/, both sides"
Figures = Mapping[str, Mapping[str, int]]
"""Figures by name, of each thing that was counted."""
_GOLDEN = Path(__file__).with_name("golden_calls.json")
Tally = Counter[tuple[str, str]]
"""How often each function was called, by file and name."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one request passes through in one process.

    Attributes:
        own: Calls of mqinfer's functions a request.
        broker: Those of the functions in the room `broker`.
        files: Modules of mqinfer, as paths within the package.
    """

    own: float
    broker: float
    files: frozenset[str]

    def __or__(self, other: Side) -> Side:
        """Return both together: the sums of the calls, and all that either passes through."""
        return Side(self.own + other.own, self.broker + other.broker, self.files | other.files)


@dataclass(frozen=True, slots=True)
class CountedCalls:
    """What one request or one frame passes through.

    Attributes:
        what: In words.
        sides: By role, `client` or `edge` first.
    """

    what: str
    sides: Mapping[str, Side]

    def together(self) -> Side:
        """Return all sides as one."""
        return reduce(or_, self.sides.values())


def count_calls(small: Workload, frame: Workload) -> list[CountedCalls]:
    """Count a small request, with one caller and with eight, and a frame, without sinks and with the usual ones.

    Raises:
        MqinferError: A process does not start, or fails a request.
    """
    with MosquittoServer() as broker:
        counted = count_requests(small, broker.url)
    return [*counted, *map(count_gateway, (small, frame)), *_count_frames(frame, [(), DEFAULT_SINKS])]


def count_requests(workload: Workload, url: str, callers: Sequence[int] = (1, 8)) -> list[CountedCalls]:
    """Count 200 requests, after a warm-up of 50.

    Args:
        workload: What to ask.
        url: Of the broker.
        callers: Requests in flight at a time; many share the wake-ups of a thread.

    Returns:
        One for each number of callers.

    Raises:
        MqinferError: A process does not start, or fails a request.
    """
    repository = workload.path.parents[2]
    with ExitStack() as stack:
        worker = _start(stack, "worker", url, repository, workload.model)
        client = _start(stack, "client", url, repository, workload.name)
        sides = {"client": client, "worker": worker}

        def send(callers: int, requests: int) -> None:
            client.ask(f"{callers} {requests}")

        words = [(each, "one caller" if each == 1 else f"{each} callers") for each in callers]
        return [_counted(f"{workload.name}, {name}", sides, partial(send, each)) for each, name in words]


def _counted(what: str, sides: Mapping[str, Program], send: Callable[[int], object]) -> CountedCalls:
    """Count what processes do for requests; some come first that are not counted."""
    tallies = []
    for requests in (_WARM_UP, _REQUESTS):
        send(requests)
        tallies.append({role: _read(each.ask("")) for role, each in sides.items()})
    before, after = tallies
    return CountedCalls(what, {role: side_of(after[role] - before[role], _REQUESTS) for role in sides})


def count_gateway(workload: Workload) -> CountedCalls:
    """Count requests to the gateway's gRPC front, one after the other.

    Raises:
        MqinferError: A process does not start, or fails a request.
    """
    grpc = import_extra("grpc", "bench", "grpcio")
    with MosquittoServer() as broker, ExitStack() as stack:
        worker = _start(stack, "worker", broker.url, workload.path.parents[2], workload.model)
        gateway = _start(stack, "gateway", broker.url)
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{gateway.first_line}", OPTIONS))
        ask, request = channel.unary_unary(INFER), request_maker(workload)

        def send(requests: int) -> None:
            for _ in range(requests):
                ask(request(workload.array), wait_for_ready=True)

        return _counted(f"{workload.name} through the gateway", {"gateway": gateway, "worker": worker}, send)


def _count_frames(workload: Workload, sinks: Sequence[Sequence[str]]) -> list[CountedCalls]:
    """Count a frame of a ROS 2 bag with Bayer mosaics, once for each set of sinks.

    It is the difference of a replay of 40 frames and one of 20.
    """
    found: list[CountedCalls] = []
    with MosquittoServer() as broker, TemporaryDirectory(prefix="mqinfer-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        bags = [  # of one stream: with the topic of class masks each moment would be two frames, and two requests
            write_drive(folder / f"drive-{n}", ros=2, frames=n * _FRAMES, seed=1, truth_topic=False) for n in (1, 2)
        ]
        worker = _start(stack, "worker", broker.url, workload.path.parents[2], workload.model)
        edge = _start(stack, "replays", "--broker", broker.url, "--model", workload.model)
        for each in sinks:
            counted = []
            for run, bag in enumerate((bags[0], *bags)):  # the first one fills caches
                before = _read(edge.ask("[]")), _read(worker.ask(""))
                out = str(folder / f"out-{len(found)}-{run}")
                words = [str(bag), *(word for sink in each for word in ("--output", out, "--sink", sink))]
                counted.append((_read(edge.ask(json.dumps(words))) - before[0], _read(worker.ask("")) - before[1]))
            _, (short, _), (long, served) = counted
            sides = {"edge": side_of(long - short, _FRAMES), "worker": side_of(served, 2 * _FRAMES)}
            found.append(CountedCalls(f"frame of a bag, {len(each) or 'no'} sinks", sides))
    return found


def side_of(tally: Tally, times: int) -> Side:
    """Return what one request passes through, from the tally of many requests; leave out what happens less often.

    Args:
        tally: Of all requests.
        times: Number of requests.
    """
    calls = Counter[str]()  # by file
    for (file, _), count in tally.items():
        if count >= _REGULAR * times and not file.startswith(_NOT_OURS):
            calls[file] += count
    broker = sum(count for file, count in calls.items() if file.startswith("broker/"))
    return Side(calls.total() / times, broker / times, frozenset(calls))


def report_calls(passages: Sequence[CountedCalls]) -> Report:
    """Return the report: one line for each side, and one for both together."""
    headings = ["what", "side", "own calls", "files"]
    rows: list[list[Cell]] = []
    for passage in passages:
        for role, side in {**passage.sides, "together": passage.together()}.items():
            rows.append([passage.what, role, round(side.own), len(side.files)])
    grid = Grid("What a request passes through", headings, rows, words=2)
    panels = [Panel(heading, [heading]) for heading in ("own calls", "files")]
    return Report(grid, panels, machine_sentence(describe_machine()), passages)


def figures_of(counted: Iterable[CountedCalls]) -> dict[str, dict[str, int]]:
    """Return the golden figures of what was counted: own calls in the room `broker`, others of each side, and files.

    Several callers share the wake-ups of threads by chance, so only counts of one caller have golden figures.
    """
    return {each.what: _figures(each) for each in counted if "callers" not in each.what}


def differences(figures: Figures, golden: Figures) -> dict[tuple[str, str], str]:
    """Return the figures that exceed the golden ones by more than the tolerance, or are counted no more, in words."""
    names = {(what, name) for each in (figures, golden) for what, by_name in each.items() for name in by_name}
    found = {}
    for what, name in sorted(names):
        figure, expected = figures.get(what, {}).get(name, 0), golden.get(what, {}).get(name, 0)
        tolerance = _BY_CHANCE if name == _BROKER else TOLERANCE
        if figure > (1 + tolerance) * expected or not figure:
            found[what, name] = f"{what}: {name}: {figure}, expected {expected}, or {tolerance:.0%} more at most"
    return found


def read_golden() -> dict[str, dict[str, int]]:
    """Return the golden figures."""
    golden: dict[str, dict[str, int]] = json.loads(_GOLDEN.read_text(encoding="utf-8"))
    return golden


def write_golden(figures: Figures) -> Path:
    """Make these figures the golden ones; return the file."""
    _GOLDEN.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return _GOLDEN


def _figures(counted: CountedCalls) -> dict[str, int]:
    together = counted.together()
    figures = {_BROKER: together.broker, "other calls, both sides": together.own - together.broker}
    if "edge" not in counted.sides:  # a request alone; of frames that overlap, each side's share changes with timing
        figures |= {f"other calls of the {role}": side.own - side.broker for role, side in counted.sides.items()}
    return {**{name: round(figure) for name, figure in figures.items()}, "files": len(together.files)}


class CallCounter:
    """Counts the calls of all threads that start after `install`, and of the one that calls it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, CodeType], int] = {}

    def install(self) -> None:
        """Begin to count."""
        threading.setprofile(self._count)
        sys.setprofile(self._count)

    def uninstall(self) -> None:
        """Stop counting, in this thread and in those that start from now on."""
        threading.setprofile(None)
        sys.setprofile(None)

    def tally(self) -> Tally:
        """Return what was counted so far, this module's own calls left out."""
        tally: Tally = Counter()
        counting = sys.getprofile()
        sys.setprofile(None)  # or the library calls below would count
        for (_, code), count in self._counts.copy().items():
            if code.co_filename != __file__:
                tally[_short(code.co_filename), code.co_qualname] += count
        sys.setprofile(counting)
        return tally

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            key = (threading.current_thread().name, frame.f_code)  # by thread: no two change one entry
            self._counts[key] = self._counts.get(key, 0) + 1


def _short(file: str) -> str:
    """Return a path within the package, or the whole path, with a slash in front, of anything else."""
    path = Path(file)
    return str(path.relative_to(_PACKAGE)) if path.is_relative_to(_PACKAGE) else f"/{file.lstrip('/')}"


def _read(line: str) -> Tally:
    return Counter({tuple(key): count for key, count in json.loads(line)})


def _write(tally: Tally) -> None:
    print(json.dumps(list(tally.items())), file=sys.__stdout__, flush=True)


def _start(stack: ExitStack, *arguments: object) -> Program:
    """Start a process of this module, which ends with the stack."""
    return stack.enter_context(closing(Program(main, *arguments)))


# What follows runs in the processes.


def _client(counter: CallCounter, url: str, repository: str, name: str) -> None:
    """Send requests as each line of standard input asks, `CALLERS REQUESTS`, or none."""
    (workload,) = load_workloads(Path(repository), [name])
    feeds = {workload.input: workload.array}
    with Client(url) as client:
        print("ready", flush=True)
        for line in sys.stdin:
            callers, requests = map(int, line.split() or (1, 0))
            pending: deque[Future[InferResult]] = deque()
            for _ in range(requests):
                if len(pending) == callers:
                    pending.popleft().result()
                pending.append(client.submit(workload.model, feeds, timeout=30.0, outputs=[workload.output]))
            while pending:
                pending.popleft().result()
            _write(counter.tally())


def _worker(counter: CallCounter, url: str, repository: str, model: str) -> None:
    options = WorkerOptions("bench-calls", inline_s=_SLOWER * WorkerOptions("").inline_s)
    worker = serve(ProcessSpec(Path(repository), model, 1, BrokerAddress.parse(url), options, device="cpu"))
    print("ready", flush=True)
    for _ in sys.stdin:
        _write(counter.tally())
    worker.stop()


async def _gateway(counter: CallCounter, url: str) -> None:
    async with serving(url) as ports:
        print(ports["grpc"], flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            _write(counter.tally())


def _replays(counter: CallCounter, *arguments: str) -> None:
    """Run `mqinfer replay` to its end with each list of words that standard input has; an empty list runs nothing."""
    print("ready", flush=True)
    for line in sys.stdin:
        if words := json.loads(line):
            _replay(*arguments, *words)
        _write(counter.tally())


def _replay(*arguments: str) -> None:
    sys.argv = ["mqinfer", "replay", *arguments]
    output = StringIO()
    try:
        with redirect_stdout(output), redirect_stderr(output):
            runpy.run_module("mqinfer", run_name="__main__")
    except SystemExit as error:
        if error.code:
            print(output.getvalue(), file=sys.stderr)
            raise


def main(role: str, *arguments: str) -> None:
    """Run one of the processes: `client`, `worker`, `gateway` or `replays`."""
    roles: dict[str, Callable[..., None]] = {
        "client": _client,
        "worker": _worker,
        "gateway": lambda *given: asyncio.run(_gateway(*given)),
        "replays": _replays,
    }
    counter = CallCounter()
    counter.install()
    try:
        roles[role](counter, *arguments)
    finally:
        counter.uninstall()  # while the interpreter shuts down, a profile function would fail
