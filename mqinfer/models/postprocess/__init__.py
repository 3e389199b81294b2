"""Post-processing of a model's outputs in the worker: top classes, masks of logits, the best boxes."""
