"""The model repository: folders, versions and configuration."""
