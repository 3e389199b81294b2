"""`mqinfer models` and its subcommands."""

from mqinfer.cli.models.commands import app

__all__ = ["app"]
