"""`mqinfer compare`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from mqinfer.cli.edge.running import failed_load
from mqinfer.cli.exit_codes import ExitCode, exit_code, print_error
from mqinfer.cli.local import local_address, local_versions, versions_of
from mqinfer.cli.options import ConnectionOptions, plain_console, table_console, with_connection
from mqinfer.client.connection import connect, default_name
from mqinfer.client.options import ClientOptions
from mqinfer.edge_agent.reporting.report import Ending
from mqinfer.edge_agent.settings import OutputSettings, PreparingSettings, ReplayOptions, ReplaySettings, SourceSettings
from mqinfer.interrupts import until_signal
from mqinfer.lab.comparing.comparison import Compared, VerdictBounds, compare_models
from mqinfer.lab.comparing.labels import parse_classes
from mqinfer.lab.comparing.tolerance import NumberTolerance, parse_tolerances
from mqinfer.lab.reports import Grid, print_grid
from mqinfer.logs import printable
from mqinfer.protocol.errors import ConfigError, ModelNotFound, MqinferError
from mqinfer.protocol.topics import Topics


@with_connection
def compare(
    connection: ConnectionOptions,
    source: Annotated[str, typer.Argument(help="Bag, video or folder of pictures.")],
    model: Annotated[
        list[str],
        typer.Option(help="Name of a model, or name/version; repeat it. The others are compared with the first one."),
    ],
    truth: Annotated[
        str | None,
        typer.Option(
            help="Topic of label pictures or Detection2DArray, folder of label pictures or KITTI's label_2, COCO's "
            "annotations (.json), or CSV file."
        ),
    ] = None,
    truth_class: Annotated[
        list[str] | None,
        typer.Option(
            help="Which class of the models a class of the truth is: TRUTH=CLASS; TRUTH= leaves it out, *= all others."
        ),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Run the models in this process, without a broker.")] = False,
    repository: Annotated[Path, typer.Option(help="Model repository for --local.")] = Path("models"),
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Image topic of the bag; may be repeated. By default all but depth and the truth."),
    ] = None,
    start: Annotated[float, typer.Option(help="Where to start, in seconds after the first frame.", min=0)] = 0,
    duration: Annotated[float | None, typer.Option(help="How much to compare, in seconds; all by default.")] = None,
    window: Annotated[
        int, typer.Option(help="Largest number of requests in flight for each stream and model.", min=1, max=1000)
    ] = 8,
    timeout: Annotated[float, typer.Option(help="Time limit of each request, in seconds.", min=0.001, max=1e6)] = 300,
    encoding: Annotated[
        str, typer.Option(help="Codec of the frames: lz4, png[:0-9], raw or jpeg[:1-100]; all but the last keep them.")
    ] = "lz4",
    max_disagreement: Annotated[
        float, typer.Option(help="Largest mean disagreement with the first model, 0 to 1.", min=0, max=1)
    ] = 0.01,
    rtol: Annotated[
        float, typer.Option(help="Relative tolerance of floats, as in numpy.testing.assert_allclose.", min=0)
    ] = NumberTolerance().relative,
    atol: Annotated[float, typer.Option(help="Absolute tolerance of floats.", min=0)] = NumberTolerance().absolute,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(help="NumberTolerance of one output, OUTPUT=RTOL,ATOL, which decides too; may be repeated."),
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(help="Least score against the truth: mean IoU, accuracy or mAP 0.5:0.95.", min=0, max=1),
    ] = None,
    worst: Annotated[int, typer.Option(help="Pictures of the frames that differ most, for each model.", min=0)] = 5,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for compare.json, the worst frames, and each model's results and boxes. No files by default."
        ),
    ] = None,
) -> None:
    """Compare the results of models over a recording, with each other and with the truth.

    The exit code is 1 if a model disagrees with the first one by more than --max-disagreement, or scores below
    --min-score.
    """
    models = _checked(model, truth, min_score)
    bounds = VerdictBounds(max_disagreement, min_score, parse_tolerances(NumberTolerance(rtol, atol), tolerance))
    options = ReplayOptions(models[0], window=window, timeout=timeout)
    settings = ReplaySettings(
        SourceSettings([source], topic or (), start=start, duration=duration),
        options,
        PreparingSettings(encoding),
        OutputSettings(output),
    )
    address = local_address() if local else connection.address()
    name, topics = connection.name or default_name(address), Topics(connection.root)
    with ExitStack() as signals, ExitStack() as stack:
        if local:
            for served, versions in versions_of(models).items():
                stack.enter_context(local_versions(repository, served, versions, address, topics))
        requester = connect(address, name, topics, ClientOptions(window=window * len(models)))
        stack.callback(requester.close)
        stop = signals.enter_context(until_signal(lambda: "nothing was compared"))
        try:
            found = compare_models(
                settings,
                models,
                requester,
                broker="local" if local else str(address),
                stop=stop,
                console=plain_console(stderr=True),
                truth=truth,
                renamed=parse_classes(truth_class),
                bounds=bounds,
                worst=worst,
            )
        except ModelNotFound as error:
            raise (None if local else failed_load(requester, models)) or error from None
    raise typer.Exit(_report(found))


def _checked(model: Sequence[str], truth: str | None, min_score: float | None) -> list[str]:
    """Return each model once.

    Raises:
        ConfigError: There is nothing to compare.
    """
    models = list(dict.fromkeys(model))
    if len(models) < 2 and truth is None:
        raise ConfigError("expected two models or more, or one and its --truth; repeat --model")
    if min_score is not None and truth is None:
        raise ConfigError("--min-score is against a --truth; name it")
    return models


def _report(found: Compared) -> ExitCode:
    """Print the tables and the verdict, and return the exit code."""
    console = table_console()
    for grid in _grids(found.report):
        print_grid(grid, console)
    for line in [*found.refused, *(f"wrote {path}" for path in found.files)]:
        console.print(printable(line), soft_wrap=True)
    errors = [each for each in (*(session.broke_off for session in found.sessions), found.error) if each]
    for each in errors:
        print_error(each)
    return _exit_code(found, errors)


def _exit_code(found: Compared, errors: Sequence[MqinferError]) -> ExitCode:
    ended = {session.ended for session in found.sessions}
    if Ending.INTERRUPTED in ended:
        return ExitCode.INTERRUPTED
    if Ending.INCOMPLETE in ended:
        return ExitCode.INCOMPLETE
    if errors:
        return max(map(exit_code, errors))
    has_failed = any(session.snapshot.failed for session in found.sessions)
    return ExitCode.FAILED if has_failed or found.refused else ExitCode.OK


def _grids(report: dict[str, Any]) -> list[Grid]:
    """Return a table of the disagreements, one of numbers and one of scores, each where there are any."""
    pairs, scores = report["pairs"], report.get("scores", [])
    outputs = [
        (
            printable(" / ".join(pair["models"])),
            printable(name),
            str(each["frames"]),
            *_numbers(each, _DEVIATION, "{:.3g}"),
        )
        for pair in pairs
        for name, each in pair.get("outputs", {}).items()
    ]
    shown = [key for key in _WORDS if any(key in each for each in scores)]
    rows = [(printable(each["model"]), str(each["frames"]), *_numbers(each, shown)) for each in scores]
    grids = [
        Grid("disagreement", _PAIR_HEADINGS, [*map(_pair, pairs)], words=1),
        Grid("numbers", _OUTPUT_HEADINGS, outputs, words=2),
        Grid("against the truth", ("model", "frames", *(_WORDS[key] for key in shown)), rows, words=1),
    ]
    return [each for each in grids if each.rows]


_DEVIATION = ("largest_difference", "mean_difference", "outside")
_OUTPUT_HEADINGS = ("models", "output", "frames", "largest difference", "mean difference", "beyond the tolerance")
_PAIR_HEADINGS = ("models", "frames", "differ", "mean", "p95", "largest", "mean IoU")


def _pair(each: dict[str, Any]) -> tuple[str, ...]:
    counts = str(each["frames"]), str(each["frames_that_differ"])
    return (printable(" / ".join(each["models"])), *counts, *_numbers(each, ("mean", "p95", "largest", "mean_iou")))


_WORDS = {
    "mean_iou": "mean IoU",
    "pixel_accuracy": "pixel accuracy",
    "accuracy": "accuracy",
    "map_50": "mAP 0.5",
    "map_50_95": "mAP 0.5:0.95",
}


def _numbers(each: dict[str, Any], keys: Sequence[str], form: str = "{:.4f}") -> list[str]:
    return [form.format(each[key]) if key in each else "" for key in keys]
