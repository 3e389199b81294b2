"""Draws what a trained autoencoder of jets learned: the losses of its training, and the ROC curve of its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.lab.model_process import in_process, run_rows
from mqinfer.lab.reports import new_figure
from mqinfer.lab.scores import RocCurve, roc
from mqinfer.lab.zoo.building import read_losses
from mqinfer.lab.zoo.networks.jets import adjacency, draw_both
from mqinfer.models.repository import ModelVersion

SCORES = ("chamfer", "loss")
_COUNT = 1000
_GRAPH = "graph_vae"
_AUTOENCODERS = ("conv_vae", _GRAPH)


def draw_autoencoder(model: ModelVersion, directory: Path) -> tuple[Path, ...]:
    """Write `MODEL-VERSION-roc.png`, and `-loss.png` where its build kept the losses; earlier ones under numbers.

    Nothing is written for a model that is none of the two autoencoders.

    Args:
        model: Version of a repository.
        directory: Existing folder.

    Raises:
        ConfigError: The folder can't be written.
        MissingExtra: matplotlib is not installed.
    """
    if not model.name.startswith(_AUTOENCODERS):
        return ()
    curves = score_jets(model, _COUNT)
    figure = new_figure(4.6, 4.2)
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.plot(curve.false, curve.true, label=f"{name}, area {curve.area:.3f}")
    _label(axes, "jets with one core, share above", "jets with two cores, share above")
    axes.legend(fontsize="small")
    drawn = {"roc": figure}
    if losses := read_losses(model.folder.parent):
        drawn["loss"] = new_figure(4.6, 4.2)
        axes = drawn["loss"].subplots()
        axes.plot(range(1, len(losses) + 1), losses)
        _label(axes, "step of 128 jets", "loss")
    return tuple(_save(each, directory / f"{model.name}-{model.version}-{kind}.png") for kind, each in drawn.items())


def score_jets(model: ModelVersion, count: int) -> dict[str, RocCurve]:
    """Return the curve of each score: jets with two cores are the signal, jets with one the background.

    Args:
        model: One of the two autoencoders.
        count: Jets of either kind.
    """
    jets = draw_both(count)
    inputs = {"features": jets, "adjacency": adjacency(jets)} if model.name.startswith(_GRAPH) else {"jets": jets}
    scores = in_process(run_rows, model, None, inputs, SCORES)
    return {name: roc(found[count:], found[:count]) for name, found in scores.items()}


def _label(axes: Any, over: str, up: str) -> None:
    axes.set_xlabel(over)
    axes.set_ylabel(up)
    axes.grid(visible=True, alpha=0.3)


def _save(figure: Any, path: Path) -> Path:
    with writing(path):
        set_aside(path)
        figure.savefig(path)
    return path
