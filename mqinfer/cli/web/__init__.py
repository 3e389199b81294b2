"""The subcommands that serve HTTP: the gateway and the dashboard."""
