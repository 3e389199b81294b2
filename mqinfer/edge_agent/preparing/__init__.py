"""From a recorded frame to the tensors that travel."""
