"""The `mqinfer` command, one module for each subcommand."""

import sys

__all__ = ["main"]

INTERRUPTED = 130
"""As in `mqinfer.interrupts`, which is not imported before the command."""


def main() -> None:
    """Run the command.

    The commands are imported only here: the process of each model imports this module again (multiprocessing does so
    for the main module), and would otherwise start with all of them, for 0.2 CPU seconds and 15 MB more.
    """
    try:
        from mqinfer.cli.app import main as run_command

        run_command()
    except KeyboardInterrupt:  # while modules are imported: nothing has begun
        sys.exit(INTERRUPTED)
