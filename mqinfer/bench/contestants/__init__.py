"""Ways to a model that are measured against each other."""
