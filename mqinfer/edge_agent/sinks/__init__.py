"""Sinks keep the results of a replay: one module for each kind."""
