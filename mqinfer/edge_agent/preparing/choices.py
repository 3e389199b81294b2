"""Which codec carries the frames of a run, and which one its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from mqinfer.bags.joining import Join
from mqinfer.codecs import LOSSY, available_encodings, parse_encoding, traits_of
from mqinfer.edge_agent.frames.encoding import AUTO, FrameEncoding
from mqinfer.edge_agent.preparing.encoding import LOSSLESS, listed_encodings
from mqinfer.images.sending import offer_contract
from mqinfer.protocol.card import ColourOrder, ImageContract, ModelCard, PointsContract
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import BadEncoding, ConfigError, MissingExtra

T = TypeVar("T")
Contract = ImageContract | PointsContract
_MOSAICS = ("bayer:lz4", "bayer")
_MASKS = (Datatype.UINT8, Datatype.BOOL)


def choose_encoding(wish: str | None, card: ModelCard, *, alone: bool = False) -> str:
    """Check that the worker decodes a codec, or choose one.

    Args:
        wish: Such as `jpeg:90`; `auto` for several, among which the edge chooses by what it measures: all that lose
            nothing and, where the default loses something, that and the video codecs; None for the default, which is
            JPEG at quality 90 if the worker decodes it, else lossless LZ4; so for depth.
        card: The model's.
        alone: Whether each frame must be decodable without those before it.

    Raises:
        ConfigError: The codec is unknown, the worker cannot decode it, or it can't carry depth.
    """
    has_jpeg = "jpeg" in card.parameters.encodings and "jpeg" in available_encodings() and not _takes_depth(card)
    if wish is None:
        return "jpeg:90" if has_jpeg else LOSSLESS
    if wish == AUTO:
        usual = _usual_of_depth() if _takes_depth(card) else _usual(has_jpeg=has_jpeg)
        return f"{AUTO}:{','.join(each for each in usual if _is_possible(each, card, alone=alone))}"
    for each in listed_encodings(wish):
        _check(each, card, alone=alone)
    return wish


def check_encoding(wish: str) -> list[FrameEncoding]:
    """Return the encodings that `--encoding` lists; none for `auto` alone.

    Raises:
        ConfigError: There is no such encoding.
    """
    return [] if wish == AUTO else [_checked(FrameEncoding.parse, each) for each in listed_encodings(wish)]


def check_alone(wish: str) -> None:
    """Check that frames can be decoded without those before them.

    Raises:
        ConfigError: They can't, or there is no such encoding.
    """
    if any(each.stream for each in check_encoding(wish)):
        raise ConfigError(
            f"--encoding {wish} needs the frames before, which are gone when one is sent from the --spool; "
            "choose one such as jpeg:90, png or bayer"
        )


def _usual(*, has_jpeg: bool) -> tuple[str, ...]:
    """Return what `auto` tries for colours: what loses nothing, and where JPEG is the default that and other lossy."""
    tried = [name for name in available_encodings() if traits_of(name).auto_colours and name != "jpeg"]
    exact = [name for name in tried if name not in LOSSY]
    lossy = [name for name in tried if name in LOSSY]
    return ("jpeg:90", *exact, *_MOSAICS, *lossy) if has_jpeg else (*exact, *_MOSAICS)


def _usual_of_depth() -> tuple[str, ...]:
    others = [name for name in available_encodings() if traits_of(name).auto_depth and name != LOSSLESS]
    return LOSSLESS, *others


def _takes_depth(card: ModelCard) -> bool:
    return card.image is not None and card.image.colour is ColourOrder.DEPTH


def _is_possible(wish: str, card: ModelCard, *, alone: bool) -> bool:
    try:
        _check(wish, card, alone=alone)
    except (ConfigError, MissingExtra):
        return False
    return True


def _check(wish: str, card: ModelCard, *, alone: bool) -> None:
    names = _checked(FrameEncoding.parse, wish).names
    takes = card.parameters.encodings
    if missing := [name for name in names if name not in takes]:
        raise ConfigError(f"the worker of {card.name!r} can't decode {missing[0]!r}; choose one of {', '.join(takes)}")
    if _takes_depth(card) and (lossy := [name for name in names if name in LOSSY]):
        left = ", ".join(each for each in card.parameters.encodings if each not in LOSSY)
        raise ConfigError(f"{card.name!r} takes depth pictures, which {lossy[0]!r} can't carry; choose one of {left}")
    if alone:
        check_alone(wish)


def choose_contracts(card: ModelCard, join: Join | None) -> tuple[ImageContract, Sequence[Contract]]:
    """Return the contracts of a request's main picture, and of the pictures and points that go with it.

    Args:
        card: The model's.
        join: The pictures of one request; None for one.

    Raises:
        ConfigError: The model takes no pictures, another number of them, or has no input of a name.
    """
    takes: Sequence[Contract] = (*card.pictures, *card.parameters.points)
    if not card.pictures:
        raise ConfigError(_NO_PICTURE.format(card.name) if takes else offer_contract(card))
    main, *others = takes if join is None else _joined(card, takes, join)
    if isinstance(main, PointsContract):
        raise ConfigError(
            f"--join: name the input of a picture first, since the first is the main picture: {main.input}"
        )
    if join is not None or not others:
        return main, others
    topics = " ".join(f"--join {each.input}=/TOPIC" for each in takes)
    is_pair = len(card.pictures) == len(takes) == 2
    raise ConfigError(
        f"model {card.name!r} takes {_listed(card, takes)}; name their topics: {topics}"
        + (", or send each frame with the one before: --join previous" if is_pair else "")
    )


_NO_PICTURE = "model {!r} takes points without a picture, which replays send only beside one; Client.infer sends them"


def _listed(card: ModelCard, takes: Sequence[Contract]) -> str:
    kinds = "pictures and points" if card.parameters.points else "pictures"
    return f"{len(takes)} {kinds} in one request ({', '.join(each.input for each in takes)})"


def _joined(card: ModelCard, takes: Sequence[Contract], join: Join) -> Sequence[Contract]:
    """Return the contracts of joined pictures and points, in their order."""
    by_name = {each.input: each for each in takes}
    if unknown := [name for name in join.inputs if name and name not in by_name]:
        known = ", ".join(by_name)
        raise ConfigError(f"--join: model {card.name!r} has no input {unknown[0]!r} for a topic; it has {known}")
    if len(takes) != join.frames:
        raise ConfigError(f"--join: model {card.name!r} takes {_listed(card, takes)}, not {join.frames}")
    rest = iter([each for each in takes if each.input not in join.inputs])
    return [by_name[name] if name else next(rest) for name in join.inputs] or takes


def choose_output_encoding(wish: str | None, card: ModelCard, version: str | None = None) -> str | Mapping[str, str]:
    """Check a codec for the results, or choose one for each output.

    Args:
        wish: Such as `lz4`; None for `mask` if an output may be a class mask (UINT8 or BOOL), else `lz4`. Both are
            lossless for every output of bytes.
        card: The model's.
        version: Version asked for; if it is not the card's, its outputs are unknown and `lz4` is chosen.

    Returns:
        One codec for all outputs, or one for each by name.

    Raises:
        ConfigError: The codec is unknown.
    """
    if wish is not None:
        _checked(parse_encoding, wish)
        return wish
    if version not in (None, card.version) or "mask" not in card.parameters.encodings:
        return "lz4"
    chosen = {spec.name: "mask" if spec.datatype in _MASKS else "lz4" for spec in card.outputs}
    return chosen if "mask" in chosen.values() else "lz4"


def _checked(parse: Callable[[str], T], wish: str) -> T:
    try:
        return parse(wish)
    except BadEncoding as error:
        raise ConfigError(str(error)) from error
