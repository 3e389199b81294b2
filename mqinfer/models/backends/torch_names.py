"""What the inputs and outputs of a TorchScript model are called.

The file knows the arguments of `forward` by name; of the outputs it knows at most a dictionary's keys. `model.toml` may
name both, by `forward`'s names or by place, as Triton does (https://github.com/triton-inference-server/pytorch_backend):
`INPUT__0`, or any name that ends in two underscores and the place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mqinfer.protocol.errors import ConfigError

__all__ = ["name_arguments", "name_results"]

_PLACED = re.compile(r".+__(\d{1,3})")


def name_arguments(arguments: Sequence[str], stated: Iterable[str]) -> dict[str, str]:
    """Map inputs to the arguments that they are given to.

    Args:
        arguments: The names of `forward`'s arguments, without `self`.
        stated: The names in `[[input]]`.

    Returns:
        Input to argument, in the order of the arguments; those that nobody states go by their own name.

    Raises:
        ConfigError: A stated name is no argument and has no place, or a place that there isn't.
    """
    named = {argument: argument for argument in arguments}
    for name in stated:
        if name not in arguments:
            named[_at(arguments, name, "input")] = name
    return {name: argument for argument, name in named.items()}


def name_results(result: Any, stated: Sequence[str]) -> dict[str, Any]:
    """Name what `forward` gave back: one tensor, several of them, or a dictionary.

    Args:
        result: As it came.
        stated: The names in `[[output]]`: a dictionary's keys; otherwise by place, or of all results in their order.

    Returns:
        Results by name, `OUTPUT__0` and so on where nothing names them.

    Raises:
        ConfigError: The stated names don't fit.
    """
    if isinstance(result, Mapping):
        return {str(key): value for key, value in result.items()}
    results = list(result) if isinstance(result, list | tuple) else [result]
    names = list(getattr(result, "_fields", [f"OUTPUT__{place}" for place in range(len(results))]))
    if set(stated) <= set(names):
        return dict(zip(names, results, strict=True))
    if len(stated) == len(results) and not all(_PLACED.fullmatch(name) for name in stated):
        return dict(zip(stated, results, strict=True))
    for name in stated:
        names[names.index(_at(names, name, "output"))] = name
    return dict(zip(names, results, strict=True))


def _at(names: Sequence[str], stated: str, what: str) -> str:
    found = _PLACED.fullmatch(stated)
    if found and int(found[1]) < len(names):
        return names[int(found[1])]
    raise ConfigError(
        f"model.toml: {what} {stated!r}: the model has {', '.join(names)}; use these names, or one that ends in the "
        f"place, such as {what.upper()}__{len(names) - 1}"
    )
