"""Measurements on a user's own machine: encodings of frames, versions of a segmentation model."""
