"""`mqinfer cascade train`, `calibrate` and `report`: make a cascade from the reference model's own answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt
import typer

from mqinfer.cli.local import local_address, local_versions
from mqinfer.cli.options import (
    ConnectionOptions,
    plain_console,
    table_console,
    with_connection,
    with_group,
    with_log_options,
)
from mqinfer.client.client import Client
from mqinfer.edge_agent.cascade.small import SmallNetwork
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.images.decode import to_rgb
from mqinfer.images.placement import fit
from mqinfer.judging.results import ResultMaker
from mqinfer.judging.settings import CascadeSettings, Reference, SmallModel, write_settings
from mqinfer.models.repository import Repository
from mqinfer.protocol.topics import Topics

if TYPE_CHECKING:
    from mqinfer.lab.cascade.calibration import Calibration, Goal
    from mqinfer.lab.cascade.recording import Answered
    from mqinfer.lab.cascade.scores import Scores

Pixels = npt.NDArray[np.uint8]
Source = Annotated[str, typer.Argument(help="Bag, video, folder of pictures or picture.")]


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """Who answers which question, and which frames are asked about; each field is an option."""

    reference: Annotated[str, typer.Option(help="Model whose answers count as right.")]
    target: Annotated[
        str | None,
        typer.Option(help="Class to look for: each answer is whether it is there. Without it each answer is a mask."),
    ] = None
    score: Annotated[
        float, typer.Option(help="The target is there if the reference's confidence is at least this.", min=0, max=1)
    ] = 0.5
    topic: Annotated[str | None, typer.Option(help="Image topic of a bag.")] = None
    small: Annotated[str, typer.Option(help="Name of the small model.")] = "small"
    repository: Annotated[
        Path, typer.Option(help="Model repository of the small model; with --local also of the reference.")
    ] = Path("models")
    local: Annotated[bool, typer.Option("--local", help="Run the reference in this process, without a broker.")] = False
    timeout: Annotated[float, typer.Option(help="Time limit of a request to the reference, in seconds.", min=0.1)] = 60

    def settings(self) -> CascadeSettings:
        """Return a cascade without thresholds and without a small model."""
        return CascadeSettings(Reference(self.reference, score=self.score), self.target)

    def ask(
        self, connection: ConnectionOptions, settings: CascadeSettings, source: str, skip: int, frames: int
    ) -> tuple[list[Answered], ResultMaker]:
        """Return frames of a source with the reference's answers, and what brings answers to one form."""
        from mqinfer.lab.cascade.recording import ask_reference, read_part

        console = plain_console(stderr=True)

        def tell(done: int) -> None:
            if done % 100 == 0:
                console.print(f"the reference has answered {done} frames")

        with self._client(connection) as client:
            answers = ResultMaker(settings, client.card(self.reference))
            answers.check()
            chosen = read_part(source, self.topic, skip, frames)
            return list(ask_reference(client, answers, chosen, self.timeout, tell)), answers

    @contextmanager
    def _client(self, connection: ConnectionOptions) -> Iterator[Client]:
        with ExitStack() as stack:
            address = local_address() if self.local else connection.address()
            if self.local:
                topics = Topics(connection.root)
                stack.enter_context(local_versions(self.repository, self.reference, [None], address, topics))
            yield stack.enter_context(Client(address, name=connection.name, root=connection.root))


@dataclass(frozen=True, slots=True)
class GoalOptions:
    """How good a cascade must be, and what it is priced and drawn by; each field is an option."""

    accuracy: Annotated[float, typer.Option(help="Wanted share of answers that equal those of the reference.")] = 0.98
    tolerance: Annotated[float, typer.Option(help="How far below --accuracy the accuracy on other frames may be.")] = (
        0.01
    )
    confidence: Annotated[
        float, typer.Option(help="Probability that it is not lower than that; 0.95 is 19 of 20 calibrations.")
    ] = 0.95
    reference_ms: Annotated[
        float | None,
        typer.Option(
            help="Cost of an answer of the reference, in milliseconds of a small model's core; by default its run "
            "time. State more where the link is what costs.",
            min=0,
        ),
    ] = None
    blocks: Annotated[
        int,
        typer.Option(
            help="Rows and columns of blocks in which frames are compared; the most different block counts.", min=1
        ),
    ] = 1
    plot: Annotated[Path | None, typer.Option(help="File for a plot of accuracy against cost, .png or .svg.")] = None

    def check(self) -> Goal:
        """Return what is wanted.

        Raises:
            ConfigError: It can't be, or there can't be so many blocks.
            MissingExtra: It can't be drawn, since matplotlib is not installed.
        """
        from mqinfer.lab.cascade import calibration
        from mqinfer.lab.cascade.simulation import check_blocks
        from mqinfer.lab.reports import check_plots

        check_blocks(self.blocks)
        if self.plot is not None:
            check_plots()
        return calibration.Goal(self.accuracy, self.tolerance, self.confidence)

    def choose(self, scores: Scores) -> Calibration:
        """Choose thresholds by recorded scores; print and draw the frontier."""
        from mqinfer.lab.cascade import calibration
        from mqinfer.lab.cascade.report import draw_frontier, frontier_grid, promise
        from mqinfer.lab.reports import print_grid

        if self.reference_ms is not None:
            scores = replace(scores, costs=replace(scores.costs, reference=self.reference_ms))
        found = calibration.calibrate(scores, self.check(), blocks=self.blocks)
        print_grid(frontier_grid(found), table_console())
        typer.echo(promise(found))
        if self.plot is not None:
            draw_frontier(found, self.plot)
            typer.echo(f"wrote {self.plot}")
        return found


@with_connection
@with_group("asked", ReferenceOptions)
def train(
    connection: ConnectionOptions,
    asked: ReferenceOptions,
    source: Source,
    frames: Annotated[int, typer.Option(help="Frames to train with.", min=1)] = 1000,
    skip: Annotated[int, typer.Option(help="Frames to leave out at the start.", min=0)] = 0,
) -> None:
    """Train a small model on a reference model's answers to the first frames of a recording.

    It becomes the next version of the model in the repository, as ONNX. Calibrate the cascade on later frames.
    """
    from mqinfer.lab.cascade import training

    training.check_training()
    console = plain_console(stderr=True)
    answered, answers = asked.ask(connection, asked.settings(), source, skip, frames)
    classes = answers.reference.classes if asked.target is None else ()
    if asked.target is not None:
        made = training.train_presence(*_pictures(answered), console.print)
    else:
        made = training.train_masks(*_masks(answered), len(classes), console.print)
    notes = {"source": source, "skipped": skip, "reference": asked.reference, "target": asked.target}
    folder = training.write_model(asked.repository, asked.small, made, notes, classes)
    typer.echo(f"wrote {folder}: {made.accuracy:.2%} right on frames that were kept back")


@with_connection
@with_group("goal", GoalOptions)
@with_group("asked", ReferenceOptions)
def calibrate(
    connection: ConnectionOptions,
    asked: ReferenceOptions,
    goal: GoalOptions,
    source: Source,
    frames: Annotated[int, typer.Option(help="Frames to calibrate with; more allow cheaper thresholds.", min=1)] = 2000,
    skip: Annotated[
        int | None,
        typer.Option(help="Frames to leave out at the start; by default those that the model was trained with.", min=0),
    ] = None,
    output: Annotated[Path, typer.Option(help="File for the cascade.")] = Path("cascade.toml"),
    scores: Annotated[
        Path | None, typer.Option(help="File for the recorded scores (.npz), for: mqinfer cascade report.")
    ] = None,
) -> None:
    """Choose a cascade's thresholds for an accuracy, and write the cascade for mqinfer replay --cascade."""
    from mqinfer.lab.cascade import recording, training
    from mqinfer.lab.cascade.scores import write_scores
    from mqinfer.lab.cascade.simulation import with_thresholds

    goal.check()
    found = Repository(asked.repository).find(asked.small, None)
    if skip is None:
        skip = training.trained_frames(found.folder, source)
    model = SmallModel(asked.small, 1.0, repository=asked.repository)
    staged = replace(asked.settings(), small=model)
    network = SmallNetwork(model, asked.repository, is_raw=asked.target is None)
    try:
        answered, answers = asked.ask(connection, staged, source, skip, frames)
        recorded = recording.record_scores(answered, replace(answers, small=network.card), network)
    finally:
        network.close()
    if scores is not None:
        with writing(scores):
            set_aside(scores)
        write_scores(scores, recorded)
        typer.echo(f"wrote {scores}")
    chosen = goal.choose(recorded)
    with writing(output):
        set_aside(output)
    write_settings(output, with_thresholds(staged, chosen.chosen.thresholds, goal.blocks))
    typer.echo(f"wrote {output}")


@with_log_options
@with_group("goal", GoalOptions)
def report(
    goal: GoalOptions,
    scores: Annotated[Path, typer.Argument(help="Recorded scores, from: mqinfer cascade calibrate --scores FILE.")],
) -> None:
    """Print the frontier of accuracy against cost from recorded scores; no model runs."""
    from mqinfer.lab.cascade.scores import read_scores

    goal.check()
    goal.choose(read_scores(scores))


def _pictures(answered: list[Answered]) -> tuple[Pixels, Pixels]:
    return np.stack([each.seen for each in answered]), np.concatenate([each.answer for each in answered])


def _masks(answered: list[Answered]) -> tuple[Pixels, Pixels]:
    from mqinfer.lab.cascade.training import MASK_SIZE, shrink_mask

    pictures = [np.asarray(fit(to_rgb(each.frame.image), *MASK_SIZE), np.uint8) for each in answered]
    return np.stack(pictures), np.stack([shrink_mask(each.answer) for each in answered])
