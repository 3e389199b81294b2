"""The `mqinfer` command, one module for each subcommand."""

from mqinfer.cli.app import main

__all__ = ["main"]
