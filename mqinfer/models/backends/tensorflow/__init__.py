"""The back end for frozen graphs, SavedModels and Keras files, which runs them with TensorFlow."""
