"""Which version of a model is the default one, and which other ones get a share of its requests: `MODEL/traffic.toml`.

Operators set it (`mqinfer models traffic`), and each server writes it, so that it holds beyond a restart. It names
versions only; nothing of a model comes from it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from mqinfer.models.repository.tables import Place, check_of, read_toml, table_of
from mqinfer.protocol.errors import ConfigError, InvalidRequest
from mqinfer.protocol.types import Count

TRAFFIC_FILE = "traffic.toml"
_HEAD = "# Written by `mqinfer models traffic` and `rollback`. After an edit: `mqinfer models load`.\n"


@dataclass(frozen=True, slots=True)
class Shadow:
    """The version that gets copies of a share of the requests, and whose answers are only compared.

    Attributes:
        version: The version.
        share: Per cent of the requests without a version that it gets a copy of.
        tolerance: By how much an answer that agrees may differ, 0 to 1.
    """

    version: Count
    share: int
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        if not (0 < self.share <= 100 and 0 <= self.tolerance <= 1):
            raise ValueError(f"share = {self.share}, tolerance = {self.tolerance}: expected 1 to 100, and 0 to 1")


@dataclass(frozen=True, slots=True)
class Traffic:
    """The labels of a model's versions, and the canary's share.

    Attributes:
        stable: Version labelled `stable`: the default one; None for the highest one served.
        canary: Version labelled `canary`; None for none.
        share: Per cent of the requests without a version that the canary gets.
        previous: The stable version before this one, for a rollback.
        others: Further labels with their versions, from the file alone.
        watch: Whether the canary is taken back by itself when it does worse than the stable version.
        shadow: The version labelled `shadow`; None for none.
    """

    stable: Count | None = None
    canary: Count | None = None
    share: Annotated[int, Meta(ge=0, le=100)] = 0
    previous: Count | None = None
    others: tuple[tuple[str, int], ...] = ()
    watch: bool = False
    shadow: Shadow | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions with a label; they are served whatever the model's version policy selects."""
        return tuple(int(version) for version in self.labels.values())

    @property
    def labels(self) -> dict[str, str]:
        """The versions by label, as a card lists them."""
        shadow = self.shadow and self.shadow.version
        named = {"stable": self.stable, "canary": self.canary, "shadow": shadow, **dict(self.others)}
        return {label: str(version) for label, version in named.items() if version is not None}

    @property
    def shares(self) -> dict[str, int]:
        """The per cent of the requests without a version by version, as a card lists them; empty without a split."""
        if self.stable is None or self.canary is None or not self.share:
            return {}
        return {str(self.stable): 100 - self.share, str(self.canary): self.share}

    def share_of(self, version: int) -> int:
        """Return the share that a version gets as the canary; 0 for any other one."""
        return self.share if version == self.canary and self.stable is not None else 0

    def shadow_of(self, version: int) -> Shadow | None:
        """Return what gets copies of a version's requests: the shadow of the stable one, nothing of any other."""
        return self.shadow if version == self.stable else None

    def among(self, versions: Collection[int]) -> Traffic:
        """Return the policy without the labels of versions that are not among the given ones."""
        stable, canary = (each if each in versions else None for each in (self.stable, self.canary))
        shadow = self.shadow if self.shadow and self.shadow.version in versions else None
        others = tuple((label, version) for label, version in self.others if version in versions)
        share, watch = (0, False) if canary is None else (self.share, self.watch)
        return Traffic(stable, canary, share, self.previous, others, watch, shadow)

    def moved(
        self, current: int, *, stable: int | None, canary: int | None, share: int | None, watch: bool | None = None
    ) -> Traffic:
        """Return what follows from an operator's order; None leaves something as it is.

        Args:
            current: The default version now.
            stable: The new stable version.
            canary: The new canary.
            share: The canary's new share.
            watch: Whether the canary is taken back by itself; a new one is not unless that is given.

        Raises:
            InvalidRequest: The order contradicts itself.
        """
        before = current if self.stable is None else self.stable
        chosen = before if stable is None else stable
        other = self._canary_beside(chosen, canary)
        previous = self.previous if chosen == before else before
        if watch and other is None:
            raise InvalidRequest("there is no canary to watch; name one with --canary VERSION")
        watch = self.watch and other is not None and other == self.canary if watch is None else watch
        share, shadow = self._share_for(other, share), self._shadow_beside(chosen, other)
        return Traffic(chosen, other, share, previous, self.others, watch, shadow)

    def _shadow_beside(self, *labelled: int | None) -> Shadow | None:
        """Return the shadow, unless it becomes one of these versions."""
        return None if self.shadow and self.shadow.version in labelled else self.shadow

    def shadowed(
        self, shadow: int | None = None, shadow_share: int | None = None, tolerance: float | None = None
    ) -> Traffic:
        """Return the policy with another shadow; None leaves something as it is.

        Args:
            shadow: Its version.
            shadow_share: Its share; 0 ends it.
            tolerance: By how much its answers may differ.

        Raises:
            InvalidRequest: The order contradicts itself.
        """
        orders = {"version": shadow, "share": shadow_share, "tolerance": tolerance}
        given: dict[str, Any] = {name: each for name, each in orders.items() if each is not None}
        if not given:
            return self
        if shadow is not None and shadow in {self.stable, self.canary}:
            raise InvalidRequest(f"version {shadow} is the stable one or the canary; choose another for the shadow")
        if self.shadow and shadow in {None, self.shadow.version}:
            given = asdict(self.shadow) | given
        return replace(self, shadow=_shadow(given))

    def _canary_beside(self, stable: int, canary: int | None) -> int | None:
        if canary == stable:
            raise InvalidRequest(f"version {stable} is the stable one; choose another version for the canary")
        other = self.canary if canary is None else canary
        return None if other == stable else other  # the canary becomes the stable version

    def _share_for(self, canary: int | None, share: int | None) -> int:
        if share is not None and not 0 <= share <= 100:
            raise InvalidRequest(f"a share of {share} per cent is not possible; expected 0 to 100")
        if canary is None:
            if share:
                raise InvalidRequest("there is no canary to give a share to; name one with --canary VERSION")
            return 0
        kept = self.share if canary == self.canary else 0
        return kept if share is None else share

    def rolled_back(self) -> Traffic:
        """Return the policy without the canary or, where there is none, with the stable version of before alone.

        Raises:
            InvalidRequest: There is neither.
        """
        if self.canary is not None:
            return replace(self, canary=None, share=0, watch=False)
        if self.previous is None:
            raise InvalidRequest("there is nothing to roll back: no canary, and no earlier stable version")
        return Traffic(stable=self.previous, others=self.others)


def _shadow(given: Mapping[str, Any]) -> Shadow | None:
    """Return the shadow of an order; None where its share is 0."""
    missing = [option for name, option in (("version", "--shadow"), ("share", "--shadow-share")) if name not in given]
    if missing:
        raise InvalidRequest(f"there is no such shadow so far; {missing[0]} is missing, and each new one needs it")
    try:
        return Shadow(**given) if given["share"] else None
    except ValueError as error:
        raise InvalidRequest(f"shadow: {error}") from None


def _others(value: object, place: Place) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = check_of(Mapping[str, Count])(value, place)
    for label in found:
        if not _LABEL.fullmatch(label) or label in _OWN:
            raise place.refusal(label, f"labels that begin with a letter, of 64 characters at most, and not {_OWN}")
    return tuple(found.items())


_LABEL = re.compile(r"[A-Za-z][\w.-]{0,63}", re.ASCII)
_OWN = ("stable", "canary", "shadow")
_CHECK = table_of(Traffic, others=_others)


def read_traffic(folder: Path) -> Traffic:
    """Return the policy in a model's folder; one that sets nothing where there is no file.

    Raises:
        ConfigError: The file is wrong; the message has the key and what is expected.
    """
    path = folder / TRAFFIC_FILE
    if not path.exists():
        return Traffic()
    found: Traffic = read_toml(path, _CHECK)
    if found.canary is not None and found.canary == found.stable:
        raise ConfigError(f"{path}: canary = {found.canary}: expected another version than the stable one")
    if found.shadow and found.shadow.version in {found.stable, found.canary}:
        wrong = f"shadow.version = {found.shadow.version}"
        raise ConfigError(f"{path}: {wrong}: expected neither the stable version nor the canary")
    return found


def write_traffic(folder: Path, traffic: Traffic) -> None:
    """Write the policy into a model's folder, all of it or nothing; remove the file if it sets nothing.

    Raises:
        ConfigError: It can't be written.
    """
    path = folder / TRAFFIC_FILE
    new = folder / f".{TRAFFIC_FILE}.{secrets.token_hex(4)}"  # several servers may share the repository
    values = {each.name: getattr(traffic, each.name) for each in fields(traffic)}
    values["others"] = f"{{ {', '.join([f'{label!r} = {version}' for label, version in traffic.others])} }}"
    values["watch"] = str(traffic.watch).lower()
    if shadow := traffic.shadow:
        values["shadow"] = f"{{ version = {shadow.version}, share = {shadow.share}, tolerance = {shadow.tolerance} }}"
    lines = [f"{key} = {each}\n" for key, each in values.items() if getattr(traffic, key) != getattr(Traffic(), key)]
    try:
        if traffic == Traffic():
            path.unlink(missing_ok=True)
            return
        new.write_text(_HEAD + "".join(lines), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise ConfigError(f"{path}: can't be written: {error.strerror or error}; nothing was changed") from error
