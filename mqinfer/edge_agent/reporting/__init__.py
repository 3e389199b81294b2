"""Counts what becomes of frames, and reports it."""
