"""All errors that mqinfer raises, for users to import. `mqinfer.protocol.errors` documents them as a tree."""

from mqinfer.protocol.errors import *  # noqa: F403  the whole tree, as its own `__all__` lists it
