"""The edge sends the frames of a source to a model, and keeps the results.

A frame passes through `preparation`, `window` and the client, and `results` writes it to `sinks`; `replay` connects
them for one model. `session` opens the source; `fan_out` hands its frames to the `model_run` of each model, where
`before_card` keeps them on the disk while the model is not known.
"""
