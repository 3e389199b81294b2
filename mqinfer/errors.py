"""The errors that mqinfer raises, under the name that users import; the tree is drawn in `mqinfer.protocol.errors`."""

from mqinfer.protocol import errors as _errors
from mqinfer.protocol.errors import *  # noqa: F403  the whole tree, as its own `__all__` lists it

__all__ = _errors.__all__
