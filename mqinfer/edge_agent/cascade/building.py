"""Make the cascade of a run: load the small model, find its card, and check that all of it fits together."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.client.connection import LiveRegistry
from mqinfer.client.requester import Requester
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.cascade.cascade import Cascade
from mqinfer.edge_agent.cascade.small import SmallInput, SmallNetwork, image_contract_of
from mqinfer.edge_agent.cascade.stage import OwnModel, SmallStage
from mqinfer.edge_agent.preparing.encoding import LOSSLESS
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.decode import as_image
from mqinfer.judging.results import ResultMaker
from mqinfer.judging.settings import CascadeSettings, RunsAt, SmallModel
from mqinfer.protocol.card import ColourOrder, ModelCard
from mqinfer.protocol.errors import ConfigError, ModelFailed

_ANY_SIDE = 64
"""Side of a picture for a model that takes any, in pixels."""


def make_cascade(  # noqa: PLR0913, PLR0917 - what a run has
    settings: CascadeSettings,
    reference: ModelCard,
    preparer: Preparer,
    shelf: LiveRegistry,
    options: ReplayOptions,
    requester: Requester,
) -> Cascade:
    """Make a cascade; its owner closes it.

    Args:
        settings: From its file.
        reference: Card of the reference model.
        preparer: Of the reference model.
        shelf: Finds the card of a small model in the cloud.
        options: How frames are sent.
        requester: Connected.

    Raises:
        ConfigError: The models do not fit the settings or each other.
        ModelNotLoadable: The small model is not in the repository, or can't be loaded.
        ModelNotFound: No worker serves the small model, and it is to run in workers.
        MissingExtra: OpenCV is not installed.
    """
    opencv()  # an edge without it could compare no frame, and would send all of them
    answers = ResultMaker(settings, reference)
    with ExitStack() as unless_complete:
        own = there = None
        if (small := settings.small) is not None:
            if small.placement is RunsAt.CLOUD:
                answers = replace(answers, small=shelf.get(small.model, options.card_timeout))
            if small.repository is not None:
                answers, own = load_own(answers, preparer)
                unless_complete.callback(own.network.close)
            if answers.small is not None:
                there = _input(small, answers.small, LOSSLESS, preparer)
        answers.check()
        stage = unless_complete.enter_context(closing(SmallStage(requester, options.timeout, own, there)))
        cascade = Cascade(answers, options, requester, preparer, stage, partial(load_own, preparer=preparer))
        unless_complete.pop_all()
        return cascade


def load_own(answers: ResultMaker, preparer: Preparer) -> tuple[ResultMaker, OwnModel]:
    """Load the small model that the settings name into this process, and try it.

    Args:
        answers: With the settings, which have a small model and its repository.
        preparer: Of the reference model.

    Returns:
        The form of its answers, and the model.

    Raises:
        ConfigError: It does not fit the settings or the reference model.
        ModelNotLoadable: It is not in the repository, or can't be loaded.
    """
    settings, small = answers.settings, answers.settings.small
    if small is None or small.repository is None:
        raise ConfigError("version can't be changed: this cascade has no small model with a repository")
    network = SmallNetwork(small, small.repository, is_raw=settings.target is None)
    with ExitStack() as unless_complete:
        unless_complete.callback(network.close)
        if small.placement is RunsAt.EDGE:
            answers = replace(answers, small=network.card)
        answers.check()
        own = OwnModel(network, _input(small, network.card, "raw", preparer))
        _try(answers, network, own.input)
        unless_complete.pop_all()
    return answers, own


def _input(small: SmallModel, card: ModelCard, encoding: str, given: Preparer) -> SmallInput:
    """Return what prepares frames for a small model of this card."""
    contract = image_contract_of(card)
    return SmallInput(small.model, Preparer(contract, encoding, given.demosaic, given.bit_depths, given.framing))


def _try(answers: ResultMaker, network: SmallNetwork, here: SmallInput) -> None:
    """Run the small model on a black picture: it is warm then, and its outputs are known to be usable."""
    contract = here.preparer.contract
    height, width = contract.height or _ANY_SIDE, contract.width or _ANY_SIDE
    shape, kind = ((height, width), "16UC1") if contract.colour is ColourOrder.DEPTH else ((height, width, 3), "rgb8")
    black = np.zeros(shape, np.uint16 if contract.colour is ColourOrder.DEPTH else np.uint8)
    outputs, _ = network.run(here.prepare(Frame("", 0, 0, 0, "", as_image(black, kind)), None))
    try:
        answers.of_small(outputs)
    except ModelFailed as error:
        raise ConfigError(f"small model {network.card.name!r}: {error}") from error
