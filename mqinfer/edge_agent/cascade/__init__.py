"""Answer on the edge what can be answered there, and send the model in the cloud only the rest."""
