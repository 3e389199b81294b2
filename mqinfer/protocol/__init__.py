"""What all parties agree on: types, errors, topics, and the bytes of every message; needs NumPy, msgspec and xxhash."""
