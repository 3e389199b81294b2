"""The configuration of a cascade: its stages, models, thresholds, placement and replicas; read, checked and written.

The stages and thresholds are those of NoScope (Kang et al., "NoScope: Optimizing Neural Network Queries over Video at
Scale", PVLDB 10, 2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from mqinfer.judging.thumbnail import SIDE
from mqinfer.models.repository.tables import Check, Place, as_toml, check_of, read_toml, table_of
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Positive

LAST, FIRST = "last", "first"
"""What a frame is compared with: the last frame of its stream that was not skipped, or the first one."""
_BY_SERVERS = (
    "a model in the cloud has as many workers as its servers start; remove the key, and start them with: "
    "mqinfer worker --instances N, or --autoscale LEAST..MOST"
)
_BLOCKS = tuple(count for count in range(1, SIDE + 1) if SIDE % count == 0)


class RunsAt(StrEnum):
    """Where the small model runs."""

    EDGE = "edge"
    """In the process of the edge."""
    CLOUD = "cloud"
    """In workers, as the reference model does."""


@dataclass(frozen=True, slots=True)
class DifferenceDetector:
    """The difference detector: a frame that hardly differs from another one gets its answer.

    Attributes:
        t_diff: A frame is skipped if its mean squared error on 50x50 pixels of 0 to 255 is below this; 0 skips none.
        against: `last`, `first`, or the path of a picture, such as one of the empty scene.
        blocks: The picture is divided into so many rows and columns of blocks, and the largest error of a block
            counts; 1 for the whole picture.
    """

    t_diff: float
    against: str = LAST
    blocks: Positive = 1

    def __post_init__(self) -> None:
        if self.t_diff < 0:
            raise ValueError(f"t_diff = {self.t_diff:g}: expected 0 or more")
        if self.blocks not in _BLOCKS:
            raise ValueError(f"blocks = {self.blocks}: expected one of {', '.join(map(str, _BLOCKS))}")


@dataclass(frozen=True, slots=True)
class SmallModel:
    """The small model, which answers where it is sure.

    Attributes:
        model: Its name.
        c_high: From this confidence on its answer counts: the target is there, or the mask is right.
        c_low: Below this confidence the target is not there; only of a cascade with a target.
        repository: The model repository that has it; None if only workers have it.
        version: None for the default one.
        placement: Where it runs.
        replicas: How many runs at a time there are at the edge; in the cloud the workers' servers decide that.
    """

    model: str
    c_high: float
    c_low: float = 0.0
    repository: Path | None = None
    version: str | None = None
    placement: RunsAt = RunsAt.EDGE
    replicas: Annotated[int, Meta(ge=1, le=64)] = 1

    def __post_init__(self) -> None:
        for key, value in (("c_low", self.c_low), ("c_high", self.c_high)):
            if not 0 <= value <= 1:
                raise ValueError(f"{key} = {value:g}: expected a confidence from 0 to 1")
        if self.c_low > self.c_high:
            raise ValueError(f"c_low = {self.c_low:g} is above c_high = {self.c_high:g}; lower c_low or raise c_high")
        if self.placement is RunsAt.EDGE and self.repository is None:
            raise ValueError("placement = \"edge\" needs the key 'repository', the folder with the model")

    def is_sure(self, confidence: float, *, has_target: bool) -> bool:
        """Return whether the answer counts; otherwise the reference model is asked.

        Args:
            confidence: From 0 to 1.
            has_target: Whether it is that a target is there; then a low one counts, too.
        """
        return confidence >= self.c_high or (has_target and confidence < self.c_low)

    def is_present(self, confidence: float) -> bool:
        """Return whether the target counts as there: in doubt above the middle of the two thresholds."""
        return confidence >= (self.c_low + self.c_high) / 2


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference model in the cloud, whose answers count as right.

    Attributes:
        model: Its name.
        version: None for the default one.
        score: The target is there if the model's confidence is at least this.
    """

    model: str
    version: str | None = None
    score: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.score <= 1:
            raise ValueError(f"score = {self.score:g}: expected a confidence from 0 to 1")


@dataclass(frozen=True, slots=True)
class CascadeSettings:
    """A cascade.

    Attributes:
        reference: The model that answers what no other stage does.
        target: Name of the class that is looked for: each answer is whether it is there. None for segmentation: each
            answer is a mask.
        difference: The first stage; None for none.
        small: The second stage; None for none.
    """

    reference: Reference
    target: str | None = None
    difference: DifferenceDetector | None = None
    small: SmallModel | None = None

    def __post_init__(self) -> None:
        if self.target is None and self.small is not None and self.small.c_low:
            raise ValueError("small.c_low is for a cascade with a target; remove it, or add the key 'target'")


def read_settings(path: Path) -> CascadeSettings:
    """Read a cascade's file; paths in it are relative to its folder.

    Raises:
        ConfigError: It can't be read, or is wrong; the message names the key and what is expected.
    """
    settings: CascadeSettings = read_toml(path, _CASCADE)
    small, difference, folder = settings.small, settings.difference, path.parent
    if small is not None and small.repository is not None:
        settings = replace(settings, small=replace(small, repository=folder / small.repository))
    if difference is not None and difference.against not in {LAST, FIRST}:
        settings = replace(settings, difference=replace(difference, against=str(folder / difference.against)))
    return settings


def write_settings(path: Path, settings: CascadeSettings) -> None:
    """Write a cascade's file; paths are written relative to its folder where they lie in it.

    Raises:
        ConfigError: It can't be written.
    """
    lines: list[str] = []
    for name, value in to_record(settings, path.parent).items():
        if isinstance(value, dict):
            lines += ["", f"[{name}]", *(f"{key} = {as_toml(each)}" for key, each in value.items())]
        else:
            lines.append(f"{name} = {as_toml(value)}")
    try:
        path.write_text("\n".join(lines).lstrip() + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; choose another place") from error


def to_record(settings: CascadeSettings, folder: Path = Path()) -> dict[str, object]:
    """Return a cascade as the tables of its file, without keys that have no value.

    Args:
        settings: The cascade.
        folder: Paths in it are given relative to it.
    """
    record: dict[str, object] = {} if settings.target is None else {"target": settings.target}
    for stage in ("difference", "small", "reference"):
        part = getattr(settings, stage)
        if part is not None:
            given = {each.name: getattr(part, each.name) for each in fields(part)}
            record[stage] = {key: _plain(value, folder) for key, value in given.items() if value is not None}
    if isinstance(small := record.get("small"), dict):
        # What a file may not have: see _small, and CascadeSettings.
        unfit = {"c_low": settings.target is None, "replicas": small["placement"] is RunsAt.CLOUD}
        record["small"] = {key: value for key, value in small.items() if not unfit.get(key)}
    return record


def _plain(value: object, folder: Path) -> object:
    if not isinstance(value, Path):
        return value
    absolute, above = value.resolve(), folder.resolve()
    return str(absolute.relative_to(above) if absolute.is_relative_to(above) else absolute)


def with_changes(settings: CascadeSettings, changes: Mapping[str, object]) -> CascadeSettings:
    """Return a cascade with other thresholds or another placement, while it runs.

    Args:
        settings: As they are.
        changes: Values by key: `t_diff`, `c_low`, `c_high`, `placement`, `version`.

    Raises:
        ConfigError: A key can't be changed, or a value is wrong; nothing is changed then.
    """
    given = check_changes(changes)
    difference, small = settings.difference, settings.small
    try:
        if "t_diff" in given:
            if difference is None:
                raise ConfigError("t_diff can't be changed: this cascade has no [difference]")
            difference = replace(difference, t_diff=given.pop("t_diff"))
        if given:
            if small is None:
                raise ConfigError(f"{next(iter(given))} can't be changed: this cascade has no [small]")
            small = replace(small, **given)
        return replace(settings, difference=difference, small=small)
    except ValueError as error:
        raise ConfigError(f"cascade: {error}") from error


def check_changes(changes: Mapping[str, object]) -> dict[str, Any]:
    """Return changes with their values converted.

    Raises:
        ConfigError: A key can't be changed while a cascade runs, or a value is wrong in itself.
    """
    place = Place(Path("cascade"))
    for key in changes:
        if key not in LIVE_KEYS:
            raise ConfigError(f"{key!r} can't be changed while a cascade runs; these can: {', '.join(LIVE_KEYS)}")
    return {key: LIVE_KEYS[key](value, place.at(key)) for key, value in changes.items()}


def _small(*, repository: str | None = None, **rest: object) -> SmallModel:
    if rest.get("placement") is RunsAt.CLOUD and "replicas" in rest:
        raise ValueError(f"replicas counts runs at the edge, and placement is cloud: {_BY_SERVERS}")
    folder = None if repository is None else Path(repository)
    return SmallModel(repository=folder, **rest)  # type: ignore[arg-type] # each was converted by its check


def _no_replicas(value: object, place: Place) -> None:
    raise ConfigError(f"{place} = {value!r}: {_BY_SERVERS}")


def _version(value: object, place: Place) -> str:
    """Check for a version's number, as such or as text."""
    given = float(value) if isinstance(value, str) and value.isdecimal() and len(value) < 16 else value
    if isinstance(given, (int, float)) and not isinstance(given, bool) and 0 <= given < 1e15 and given == int(given):
        return str(int(given))
    raise place.refusal(value, "a version's number, such as 3")


LIVE_KEYS: dict[str, Check] = {
    "t_diff": check_of(float),
    "c_low": check_of(float),
    "c_high": check_of(float),
    "placement": check_of(RunsAt),
    "version": _version,
}
"""Every key that can be changed while a cascade runs, and its check."""
_CASCADE = table_of(
    CascadeSettings,
    small=table_of(SmallModel, _small, repository=check_of(str)),
    reference=table_of(Reference, replicas=_no_replicas),
)
