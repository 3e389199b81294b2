"""What the people who develop mqinfer measure: ways to a model that are not installed, calls, faults.

No part of the installed package. `python -m benchmarks` lists the measurements; those of a user's own models and
recordings are `mqinfer bench`.
"""
