"""A cascade's small model is trained, and its thresholds are chosen, from the reference model's own answers."""
