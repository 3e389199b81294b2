"""The `mqinfer` command, one file a subcommand."""
