"""Make the cascade of a run: load the small model, find its card, and check that all of it fits together."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.client.connection import LiveRegistry
from mqinfer.client.requester import Requester
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.cascade.cascade import Cascade
from mqinfer.edge_agent.cascade.small import SmallInput, SmallNetwork, image_contract_of
from mqinfer.edge_agent.cascade.stage import SmallStage
from mqinfer.edge_agent.preparing.encoding import LOSSLESS
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.decode import as_image
from mqinfer.judging.results import ResultMaker
from mqinfer.judging.settings import CascadeSettings, RunsAt, SmallModel
from mqinfer.protocol.card import ColourOrder, ModelCard
from mqinfer.protocol.errors import ConfigError, ModelFailed

log = logging.getLogger("mqinfer.edge_agent")
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
        network = here = there = None
        if (small := settings.small) is not None:
            if small.repository is not None:
                network = SmallNetwork(small, small.repository, is_raw=settings.target is None)
                unless_complete.callback(network.close)
            card = (
                network.card
                if network and small.placement is RunsAt.EDGE
                else shelf.get(small.model, options.card_timeout)
            )
            answers = replace(answers, small=card)
            here, there = _inputs(small, network, card, preparer)
        answers.check()
        if network is not None and here is not None:
            _try(answers, network, here)
        _count_workers(settings, requester)
        stage = unless_complete.enter_context(closing(SmallStage(requester, options.timeout, network, here, there)))
        cascade = Cascade(answers, options, requester, preparer, stage)
        unless_complete.pop_all()
        return cascade


def _inputs(
    small: SmallModel, network: SmallNetwork | None, card: ModelCard, preparer: Preparer
) -> tuple[SmallInput | None, SmallInput]:
    """Return what prepares frames for the small model here, if it is here, and in the cloud."""

    def made(card: ModelCard, encoding: str) -> SmallInput:
        contract, given = image_contract_of(card), preparer
        own = Preparer(contract, encoding, given.demosaic, given.bit_depths, given.framing)
        return SmallInput(small.model, own)

    return None if network is None else made(network.card, "raw"), made(card, LOSSLESS)


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


def _count_workers(settings: CascadeSettings, requester: Requester) -> None:
    """Log it if fewer workers are ready than the cascade is made for."""
    wanted = {settings.reference.model: settings.reference.replicas}
    if settings.small is not None and settings.small.placement is RunsAt.CLOUD:
        wanted[settings.small.model] = settings.small.replicas
    for model, replicas in wanted.items():
        ready = len(requester.registry.models.ready_workers(model))
        if 0 < ready < replicas:
            log.warning("cascade: %d of %d workers of model %s are ready", ready, replicas, model)
