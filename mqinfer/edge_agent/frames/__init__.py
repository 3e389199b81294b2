"""A frame on its way from the source to the sinks: what it is, when each stage of it ended, and how it is seen.

`table` and `retries` decide what happens to it next, without threads or I/O.
"""
