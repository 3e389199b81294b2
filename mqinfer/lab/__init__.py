"""Tools that serve no requests: synthetic drives, the model zoo, optimisation and profiling of models."""
