"""The edge sends the frames of a source to a model, and keeps the results.

A frame passes through `preparing`, its stream's window and the client, and `results` writes it to `sinks`; `replay`
connects them for one model. `session` opens the source, and hands its frames to the `model_run` of each model.
`spooling` keeps frames on the disk while they can't be sent; `reporting` counts them.
"""
