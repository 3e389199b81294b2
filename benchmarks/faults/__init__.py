"""Faults on demand: worker processes to kill, load with its outcomes counted, and a soak.

The tests in `tests/faults` are made of these parts; `python -m benchmarks soak` runs them for as long as asked.
"""
