"""The subcommands that send frames to models, one a file."""
