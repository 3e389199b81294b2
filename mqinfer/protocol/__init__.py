"""The nouns, the errors and the bytes of mqinfer's protocol; needs numpy and msgpack and nothing else."""
