"""Ensembles: models whose outputs are inputs of others."""
