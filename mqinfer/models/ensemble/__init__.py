"""Ensembles: models whose outputs feed others."""
