"""What never serves a frame: synthetic drives, the model zoo, optimizing and profiling."""
