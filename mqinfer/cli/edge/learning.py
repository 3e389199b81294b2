"""`mqinfer cascade train`, `calibrate` and `report`: make a cascade from the reference model's own answers."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt
import typer

from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.local import local_worker
from mqinfer.cli.options import ConnectionOptions, plain_console, table_console, with_connection
from mqinfer.client.client import Client
from mqinfer.edge_agent.cascade.small import SmallNetwork
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.images.decode import to_rgb
from mqinfer.images.resize import fit
from mqinfer.judging.results import ResultMaker
from mqinfer.judging.settings import CascadeSettings, Reference, SmallModel, write_settings
from mqinfer.models.repository import Repository
from mqinfer.protocol.topics import Topics

if TYPE_CHECKING:
    from mqinfer.lab.cascade.calibration import Calibration
    from mqinfer.lab.cascade.recording import Answered
    from mqinfer.lab.cascade.scores import Scores

__all__ = ["calibrate", "report", "train"]

Pixels = npt.NDArray[np.uint8]
Source = Annotated[str, typer.Argument(help="Bag, video, folder of pictures or picture.")]
ReferenceName = Annotated[str, typer.Option("--reference", help="Model whose answers count as right.")]
Target = Annotated[
    str | None,
    typer.Option(help="Class to look for: each answer is whether it is there. Without it each answer is a mask."),
]
Score = Annotated[
    float, typer.Option(help="The target is there if the reference's confidence is at least this.", min=0, max=1)
]
TopicName = Annotated[str | None, typer.Option("--topic", help="Image topic of a bag.")]
Local = Annotated[bool, typer.Option("--local", help="Run the reference in this process, without a broker.")]
RepositoryFolder = Annotated[
    Path, typer.Option("--repository", help="Model repository of the small model; with --local also of the reference.")
]
SmallName = Annotated[str, typer.Option("--small", help="Name of the small model.")]
Timeout = Annotated[float, typer.Option(help="Time limit of a request to the reference, in seconds.", min=0.1)]
Accuracy = Annotated[float, typer.Option(help="Wanted share of answers that are the reference's own.")]
Tolerance = Annotated[
    float, typer.Option(help="The accuracy on other frames is surely not lower than this below --accuracy.")
]
Confidence = Annotated[float, typer.Option(help="How sure that is: 0.95 is 19 of 20 calibrations.")]
ReferenceCost = Annotated[
    float | None,
    typer.Option(
        "--reference-ms",
        help="Cost of an answer of the reference, in milliseconds of a small model's core; by default its run time. "
        "State more where the link is what costs.",
        min=0,
    ),
]
Blocks = Annotated[int, typer.Option(help="Rows and columns of blocks, of which the most different one counts.", min=1)]
Plot = Annotated[Path | None, typer.Option(help="File for the frontier as a picture, .png or .svg.")]


@with_connection
def train(
    connection: ConnectionOptions,
    source: Source,
    reference: ReferenceName,
    target: Target = None,
    score: Score = 0.5,
    topic: TopicName = None,
    frames: Annotated[int, typer.Option(help="Frames to train with.", min=1)] = 1000,
    skip: Annotated[int, typer.Option(help="Frames to leave out at the start.", min=0)] = 0,
    small: SmallName = "small",
    repository: RepositoryFolder = Path("models"),
    local: Local = False,
    timeout: Timeout = 60,
) -> None:
    """Train a small model on a reference model's answers to the first frames of a recording.

    It becomes the next version of the model in the repository, as ONNX. Calibrate the cascade on later frames.
    """
    from mqinfer.lab.cascade import training

    asked = _Asked(source, topic, skip, frames, timeout)
    settings = CascadeSettings(Reference(reference, score=score), target)
    console = plain_console(stderr=True)
    with _client(connection, repository, reference, is_local=local) as client:
        answered, answers = asked.ask(client, settings)
    if target is not None:
        made = training.train_presence(*_pictures(answered), console.print)
    else:
        made = training.train_masks(*_masks(answered), len(answers.reference.classes), console.print)
    classes = () if target is not None else answers.reference.classes
    notes = {"source": source, "skipped": skip, "reference": reference, "target": target}
    folder = training.write_model(repository, small, made, notes, classes)
    typer.echo(f"wrote {folder}: {made.accuracy:.2%} right on frames that were kept back")


@with_connection
def calibrate(
    connection: ConnectionOptions,
    source: Source,
    reference: ReferenceName,
    target: Target = None,
    score: Score = 0.5,
    topic: TopicName = None,
    frames: Annotated[int, typer.Option(help="Frames to calibrate with; more allow cheaper thresholds.", min=1)] = 2000,
    skip: Annotated[
        int | None,
        typer.Option(help="Frames to leave out at the start; by default those that the model was trained with.", min=0),
    ] = None,
    small: SmallName = "small",
    repository: RepositoryFolder = Path("models"),
    local: Local = False,
    timeout: Timeout = 60,
    accuracy: Accuracy = 0.98,
    tolerance: Tolerance = 0.01,
    confidence: Confidence = 0.95,
    reference_ms: ReferenceCost = None,
    blocks: Blocks = 1,
    output: Annotated[Path, typer.Option(help="File for the cascade.")] = Path("cascade.toml"),
    scores: Annotated[
        Path | None, typer.Option(help="File for the recorded scores (.npz), for: mqinfer cascade report.")
    ] = None,
    plot: Plot = None,
) -> None:
    """Choose a cascade's thresholds for an accuracy, and write the cascade for mqinfer replay --cascade."""
    from mqinfer.lab.cascade import calibration, recording, training
    from mqinfer.lab.cascade.scores import write_scores
    from mqinfer.lab.cascade.settings import check_blocks, with_thresholds

    goal = calibration.Goal(accuracy, tolerance, confidence)
    check_blocks(blocks)
    found = Repository(repository).find(small, None)
    if skip is None:
        skip = training.trained_frames(found.path, source)
    model = SmallModel(small, 1.0, repository=repository)
    staged = CascadeSettings(Reference(reference, score=score), target, small=model)
    network = SmallNetwork(model, repository, is_raw=target is None)
    try:
        with _client(connection, repository, reference, is_local=local) as client:
            answered, answers = _Asked(source, topic, skip, frames, timeout).ask(client, staged)
        recorded = recording.record_scores(answered, replace(answers, small=network.card), network)
    finally:
        network.close()
    if scores is not None:
        with writing(scores):
            set_aside(scores)
        write_scores(scores, recorded)
        typer.echo(f"wrote {scores}")
    chosen = calibration.calibrate(_priced(recorded, reference_ms), goal, blocks=blocks)
    _show(chosen, plot)
    with writing(output):
        set_aside(output)
    write_settings(output, with_thresholds(staged, chosen.chosen.thresholds, blocks))
    typer.echo(f"wrote {output}")


def report(
    scores: Annotated[Path, typer.Argument(help="Recorded scores, from: mqinfer cascade calibrate --scores FILE.")],
    accuracy: Accuracy = 0.98,
    tolerance: Tolerance = 0.01,
    confidence: Confidence = 0.95,
    reference_ms: ReferenceCost = None,
    blocks: Blocks = 1,
    plot: Plot = None,
) -> None:
    """Print the frontier of accuracy against cost from recorded scores; no model runs."""
    from mqinfer.lab.cascade import calibration
    from mqinfer.lab.cascade.scores import read_scores
    from mqinfer.lab.cascade.settings import check_blocks

    check_blocks(blocks)
    goal = calibration.Goal(accuracy, tolerance, confidence)
    _show(calibration.calibrate(_priced(read_scores(scores), reference_ms), goal, blocks=blocks), plot)


def _priced(scores: Scores, reference_ms: float | None) -> Scores:
    return scores if reference_ms is None else replace(scores, costs=replace(scores.costs, reference=reference_ms))


def _show(found: Calibration, plot: Path | None) -> None:
    from mqinfer.lab.cascade.report import draw_frontier, frontier_table, promise

    table_console().print(frontier_table(found))
    typer.echo(promise(found))
    if plot is not None:
        draw_frontier(found, plot)
        typer.echo(f"wrote {plot}")


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which frames the reference is asked about."""

    source: str
    topic: str | None
    skip: int
    frames: int
    timeout: float

    def ask(self, client: Client, settings: CascadeSettings) -> tuple[list[Answered], ResultMaker]:
        """Return the frames with the reference's answers, and what brings answers to one form."""
        from mqinfer.lab.cascade.recording import ask_reference, read_part

        console = plain_console(stderr=True)
        answers = ResultMaker(settings, client.card(settings.reference.model))
        answers.check()

        def tell(done: int) -> None:
            if done % 100 == 0:
                console.print(f"the reference has answered {done} frames")

        frames = read_part(self.source, self.topic, self.skip, self.frames)
        return list(ask_reference(client, answers, frames, self.timeout, tell)), answers


@contextmanager
def _client(connection: ConnectionOptions, repository: Path, reference: str, *, is_local: bool) -> Iterator[Client]:
    with ExitStack() as stack:
        address = BrokerAddress.parse(f"memory://local-{secrets.token_hex(4)}") if is_local else connection.address()
        if is_local:
            stack.enter_context(local_worker(repository, reference, None, address, Topics(connection.root)))
        yield stack.enter_context(Client(address, name=connection.name, root=connection.root))


def _pictures(answered: list[Answered]) -> tuple[Pixels, Pixels]:
    return np.stack([each.seen for each in answered]), np.concatenate([each.answer for each in answered])


def _masks(answered: list[Answered]) -> tuple[Pixels, Pixels]:
    from mqinfer.lab.cascade.training import MASK_SIZE, shrink_mask

    pictures = [np.asarray(fit(to_rgb(each.frame.image), *MASK_SIZE), np.uint8) for each in answered]
    return np.stack(pictures), np.stack([shrink_mask(each.answer) for each in answered])
