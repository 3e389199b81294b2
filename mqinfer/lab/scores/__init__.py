"""How well a model's outputs agree with the truth, or with another model's."""
