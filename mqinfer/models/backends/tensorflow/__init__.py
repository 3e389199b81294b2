"""Frozen graphs, SavedModels and Keras files, run by TensorFlow."""
