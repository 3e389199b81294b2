"""Tells a TorchScript archive from what else is called `.pt`, without opening any of it by PyTorch.

Formats: https://docs.pytorch.org/docs/stable/notes/serialization.html. A TorchScript archive is a ZIP with code and
`constants.pkl`; what `torch.save` writes has `data.pkl` only, a pickle, which may run any code when it is opened.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from mqinfer.models.model_file import describe
from mqinfer.protocol.errors import ModelNotLoadable

__all__ = ["check_torchscript"]

_HOW = "export the model with torch.jit.trace or torch.jit.script and its `save`, or as ONNX"
_PICKLE = b"\x80"
"""A pickle's first byte since protocol 2, the oldest that `torch.save` wrote."""


def check_torchscript(path: Path) -> None:
    """Refuse what is no TorchScript archive.

    Raises:
        ModelNotLoadable: With what it is instead, and what to do.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        with path.open("rb") as file:
            found = "a pickle" if file.read(1) == _PICKLE else describe(path)
        raise ModelNotLoadable(f"{path}: no TorchScript archive ({error}); found {found}; {_HOW}") from error
    if "constants.pkl" in names:
        return
    if "data.pkl" in names:
        raise ModelNotLoadable(
            f"{path}: weights or a pickled model (torch.save), not a TorchScript archive: a pickle has no graph "
            f"to serve and may run any code when it is opened; {_HOW}"
        )
    raise ModelNotLoadable(f"{path}: a ZIP that is no TorchScript archive (torch.export's .pt2 is not read); {_HOW}")
