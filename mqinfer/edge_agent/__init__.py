"""The edge sends the frames of a source to a model, and keeps the results.

A frame passes through `preparation`, `window` and the client, and `results` writes it to `sinks`; `replay` connects
them, and `session` opens and closes everything.
"""
