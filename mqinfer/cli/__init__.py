"""The `mqinfer` command, one file a subcommand."""

from mqinfer.cli.app import main

__all__ = ["main"]
