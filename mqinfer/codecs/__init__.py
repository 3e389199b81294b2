"""Tensor codecs: from an array to the bytes that travel and back."""
