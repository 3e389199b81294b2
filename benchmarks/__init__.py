"""What the people who develop mqinfer measure: the path, its calls, faults, the relay, a cascade.

No part of the installed package. `python -m benchmarks` lists the measurements; those of a user's own models and
recordings are `mqinfer bench`.
"""
