"""Measurements on a user's own machine: batching, encodings of frames, versions of a segmentation model."""
